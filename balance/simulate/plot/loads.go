package plot

import (
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"forebay/balance/simulate"
)

// drawKeys says what the diagrams of loads show, and which line is whose.
func drawKeys(c draw.Canvas, sc simulate.Scenario) {
	title := "Slots of each backend that are in use, of its max, by time"
	if slices.ContainsFunc(sc.Backends, func(be simulate.Backend) bool { return be.Stall.For > 0 }) {
		title += " (grey: a stall)"
	}
	c.FillText(label(11, bold, ink), vg.Point{X: c.Min.X, Y: c.Max.Y - 4}, title)
	c.Max.Y -= loadsTitle
	for i, be := range sc.Backends {
		x := c.Min.X + vg.Length(i%2)*(c.Max.X-c.Min.X)/2
		y := c.Max.Y - vg.Length(i/2)*lineHeight
		c.StrokeLine2(line(2.5, palette[i]), x, y-5, x+16, y-5)
		c.FillText(label(9, regular, ink), vg.Point{X: x + 22, Y: y}, be.String())
	}
}

// drawLoads draws a diagram for each result, in rows of the same size.
func drawLoads(c draw.Canvas, sc simulate.Scenario, results []simulate.Result) {
	rows := (len(results) + columns - 1) / columns
	plots := make([][]*plot.Plot, rows)
	for i := range plots {
		plots[i] = make([]*plot.Plot, columns)
	}
	for i, r := range results {
		plots[i/columns][i%columns] = loadsOf(sc, r, i%columns == 0, i+columns >= len(results))
	}
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: 12, PadY: 8, PadTop: 6, PadRight: 6}
	for i, canvases := range plot.Align(plots, tiles, c) {
		for j, canvas := range canvases {
			if p := plots[i][j]; p != nil {
				p.Draw(canvas)
			}
		}
	}
}

// loadsOf is the diagram of one strategy. Those at the left and below have labels.
func loadsOf(sc simulate.Scenario, r simulate.Result, left, below bool) *plot.Plot {
	p := newPlot()
	p.Title.Text = string(r.Strategy)
	p.Title.TextStyle.Font.Weight = bold
	p.X.Min, p.X.Max = 0, sc.Duration.Seconds()
	p.Y.Min, p.Y.Max = 0, 1.1 // a line at 100 % is whole, and its label no higher than the diagram
	p.X.Tick.Marker = unless(!below, timeTicks(p.X.Max))
	p.Y.Tick.Marker = unless(!left, []plot.Tick{{Value: 0, Label: "0 % "}, {Value: 0.5, Label: "50 % "}, {Value: 1, Label: "100 % "}})
	if below {
		p.X.Label.Text = "seconds"
	}
	for _, be := range sc.Backends {
		p.Add(stall(be.Stall))
	}
	for i, be := range r.Backends {
		l := &plotter.Line{LineStyle: line(1.25, palette[i])}
		for step, active := range be.Active {
			from := float64(step) * r.Step.Seconds()
			middle := (from + min(from+r.Step.Seconds(), p.X.Max)) / 2
			l.XYs = append(l.XYs, plotter.XY{X: middle, Y: active / float64(sc.Backends[i].Max)})
		}
		p.Add(l)
	}
	return p
}

// unless returns the ticks, without their labels where these would repeat others.
func unless(repeated bool, ticks []plot.Tick) plot.Ticker {
	if repeated {
		for i := range ticks {
			ticks[i].Label = ""
		}
	}
	return plot.ConstantTicks(ticks)
}

// timeTicks are some round times up to the last.
func timeTicks(last float64) []plot.Tick {
	const about = 4
	unit := math.Pow(10, math.Floor(math.Log10(last/about)))
	for _, n := range []float64{5, 2} {
		if last/(n*unit) >= about {
			unit *= n
			break
		}
	}
	var ticks []plot.Tick
	for n := 0.0; n*unit <= last*1.0001; n++ {
		ticks = append(ticks, plot.Tick{Value: n * unit, Label: number(n * unit)})
	}
	return ticks
}

// stall is a plot.Plotter of the time of a stall.
type stall simulate.Stall

// Plot draws it from bottom to top.
func (s stall) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	from, to := x(min(s.From.Seconds(), p.X.Max)), x(min((s.From+s.For).Seconds(), p.X.Max))
	if from < to {
		c.FillPolygon(shade, []vg.Point{{X: from, Y: c.Min.Y}, {X: to, Y: c.Min.Y}, {X: to, Y: c.Max.Y}, {X: from, Y: c.Max.Y}})
	}
}
