// Package plot draws what strategies made of a scenario: how long requests waited by
// each, and below how full each of them kept each backend.
//
//	plot.go   the picture and its parts
//	waits.go  the wait of each strategy, in one diagram
//	loads.go  the load of each backend, in a diagram for each strategy
//	style.go  colours, text and ticks
//
// It draws by gonum.org/v1/plot, which writes the same bytes for the same results.
package plot

import (
	"bytes"
	"fmt"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"forebay/balance/simulate"
)

// MaxBackends is how many can be told apart by their colours.
const MaxBackends = len(palette)

// Sizes, in points.
const (
	width       = 720
	margin      = 10
	lineHeight  = 14
	titleHeight = 44
	waitsFrame  = 62 // the height of the diagram of waits, besides that of its rows
	waitsRow    = 17
	namesWidth  = 130 // beside the rows
	loadsTitle  = 22
	loadsHeight = 118
	columns     = 3 // of diagrams of loads
)

// Draw writes the picture, an SVG, of the results of one or more strategies in the
// scenario. The error tells that there are too many backends, or is that of w.
func Draw(w io.Writer, sc simulate.Scenario, results []simulate.Result) error {
	if n := len(sc.Backends); n > MaxBackends {
		return fmt.Errorf("plot: %d backends, of which at most %d can be told apart", n, MaxBackends)
	}
	rows := (len(results) + columns - 1) / columns
	waits := vg.Length(waitsFrame + waitsRow*len(results))
	keys := vg.Length(loadsTitle + lineHeight*((len(sc.Backends)+1)/2))
	svg := vgsvg.New(width, 2*margin+titleHeight+waits+keys+vg.Length(loadsHeight*rows))
	c := draw.New(svg)
	c.SetColor(white)
	c.Fill(c.Rectangle.Path())
	c = draw.Crop(c, margin, -margin, margin, -margin)

	drawTitle(top(&c, titleHeight), sc)
	waitsOf(results).Draw(draw.Crop(top(&c, waits), namesWidth, 0, 0, 0))
	drawKeys(top(&c, keys), sc)
	drawLoads(c, sc, results)
	return write(w, svg)
}

// top cuts the topmost h off a canvas.
func top(c *draw.Canvas, h vg.Length) draw.Canvas {
	cut := draw.Crop(*c, 0, 0, c.Max.Y-c.Min.Y-h, 0)
	c.Max.Y -= h
	return cut
}

func drawTitle(c draw.Canvas, sc simulate.Scenario) {
	at := vg.Point{X: c.Min.X, Y: c.Max.Y}
	c.FillText(label(15, bold, ink), at, "How long requests wait, by the strategy that chooses their backend")
	at.Y -= 22
	c.FillText(label(10, regular, muted), at, sc.String())
}

// write writes the picture with fonts to fall back to. Those behind the first have the
// widths that it was laid out for, or nearly.
func write(w io.Writer, svg *vgsvg.Canvas) error {
	var b bytes.Buffer
	if _, err := svg.WriteTo(&b); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	text := bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"),
		[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// newPlot returns an empty diagram in the style of all.
func newPlot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = white
	p.Title.TextStyle = label(10, regular, ink)
	p.Title.TextStyle.XAlign = draw.XCenter
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Padding = 0
		a.LineStyle = line(0.75, muted)
		a.Tick.LineStyle = line(0.5, muted)
		a.Tick.Length = 4
		a.Label.Padding = 2
		a.Label.TextStyle.Font = label(9, regular, ink).Font
		a.Tick.Label.Font = label(9, regular, ink).Font
	}
	return p
}
