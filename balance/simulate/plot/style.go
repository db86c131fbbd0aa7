package plot

import (
	"fmt"
	"image/color"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Colours. The palette is that of Okabe and Ito (Color Universal Design, 2002), which
// those who see fewer colours can tell apart too.
var (
	white   = rgb(0xffffff)
	ink     = rgb(0x222222)
	muted   = rgb(0x666666)
	grid    = rgb(0xdddddd)
	shade   = rgb(0xe8e8e8)
	palette = [...]color.Color{rgb(0x0072b2), rgb(0x009e73), rgb(0xe69f00), rgb(0xd55e00), rgb(0xcc79a7), rgb(0x56b4e9),
		rgb(0x000000), rgb(0x999999)}
)

func rgb(x uint32) color.Color {
	return color.RGBA{R: byte(x >> 16), G: byte(x >> 8), B: byte(x), A: 255}
}

// The weights of text.
const (
	regular = xfont.WeightNormal
	bold    = xfont.WeightBold
)

// label is the style of a text that hangs from its place, to the right.
func label(size vg.Length, weight xfont.Weight, c color.Color) text.Style {
	return text.Style{
		Color:   c,
		Font:    font.Font{Typeface: "Liberation", Variant: "Sans", Weight: weight, Size: size},
		YAlign:  draw.YTop,
		Handler: text.Plain{Fonts: font.DefaultCache},
	}
}

func line(width vg.Length, c color.Color) draw.LineStyle {
	return draw.LineStyle{Color: c, Width: width}
}

// number returns x without what its last digits have from rounding.
func number(x float64) string { return fmt.Sprintf("%.6g", x) }
