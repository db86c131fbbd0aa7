package plot

import (
	"fmt"
	"image/color"
	"math"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"forebay/balance"
	"forebay/balance/simulate"
)

// decades is how many powers of ten the axis of waits has. What is shorter is drawn at
// its begin.
const decades = 3

// waitsOf is the diagram of the p50 and p99 of each strategy, from top to bottom.
func waitsOf(results []simulate.Result) *plot.Plot {
	p := newPlot()
	longest := time.Millisecond
	for _, r := range results {
		longest = max(longest, r.Wait.P99)
	}
	most := math.Pow(10, math.Ceil(math.Log10(longest.Seconds())))
	p.X.Min, p.X.Max = most/math.Pow(10, decades), most*3 // room for the last label
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.ConstantTicks(waitTicks(p.X.Min, most))
	p.X.Label.Text = "wait until a worker begins with a request: p50 (tick) to p99 (dot, number); log scale"
	p.Y.Min, p.Y.Max = -0.6, float64(len(results))-0.4
	p.Y.LineStyle.Width = 0
	p.Y.Tick.Length = 0
	p.Y.Tick.Marker = plot.ConstantTicks(nil)
	w := &waits{most: most}
	for i, r := range results {
		w.rows = append(w.rows, row{float64(len(results) - 1 - i), r})
	}
	p.Add(w)
	return p
}

// waitTicks are the powers of ten, with what is between.
func waitTicks(lowest, most float64) []plot.Tick {
	var ticks []plot.Tick
	for x := lowest; x < most*1.5; x *= 10 {
		name := time.Duration(math.Round(x * float64(time.Second))).String()
		if x == lowest {
			name = "≤ " + name
		}
		ticks = append(ticks, plot.Tick{Value: x, Label: name})
		for n := 2.0; n < 10 && x < most*0.5; n++ {
			ticks = append(ticks, plot.Tick{Value: n * x})
		}
	}
	return ticks
}

// waits is a plot.Plotter.
type waits struct {
	rows []row
	most float64
}

// row is a strategy at its height.
type row struct {
	at float64
	simulate.Result
}

// Plot draws the rows over a line for each power of ten.
func (w *waits) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for at := p.X.Min; at < w.most*1.5; at *= 10 {
		c.StrokeLine2(line(0.5, grid), x(at), c.Min.Y, x(at), c.Max.Y)
	}
	place := func(d time.Duration) vg.Length { return x(max(d.Seconds(), p.X.Min)) }
	for _, r := range w.rows {
		colour, weight := color.Color(muted), regular
		if r.Strategy == balance.LeastConn { // the default
			colour, weight = palette[0], bold
		}
		from, to, at := place(r.Wait.P50), place(r.Wait.P99), y(r.at)
		c.StrokeLine2(line(2, colour), from, at, to, at)
		c.StrokeLine2(line(2, colour), from, at-4, from, at+4)
		c.DrawGlyphNoClip(draw.GlyphStyle{Color: colour, Radius: 3.5, Shape: draw.CircleGlyph{}}, vg.Point{X: to, Y: at})
		style := label(9, weight, colour)
		style.YAlign = -0.4 // the middle of small letters
		c.FillText(style, vg.Point{X: to + 7, Y: at}, r.label())
		style.Color = ink
		c.FillText(style, vg.Point{X: c.Min.X - namesWidth, Y: at}, string(r.Strategy))
	}
}

// label is what stands beside the dot.
func (r row) label() string {
	s := simulate.Round(r.Wait.P99).String()
	if r.Refused > 0 {
		s += fmt.Sprintf(", %.2g %% refused", 100*float64(r.Refused)/float64(r.Refused+r.Served))
	}
	return s
}
