package top

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// The styles. Colours are the terminal's own sixteen, so that they suit its ground, and
// none of them says what the text beside does not.
var (
	strong = ansi.Style{}.Bold()
	faint  = ansi.Style{}.Faint()
	good   = ansi.Style{}.ForegroundColor(ansi.Green)
	bad    = ansi.Style{}.Bold().ForegroundColor(ansi.Red)
	warn   = ansi.Style{}.Bold().ForegroundColor(ansi.Yellow)
)

// pen writes styled text, or plain.
type pen struct{ plain bool }

func (p pen) write(s ansi.Style, text string) string {
	if p.plain || text == "" {
		return text
	}
	return s.Styled(text)
}

var stateStyles = map[string]ansi.Style{"up": good, "down": bad, "drain": warn, "maintain": faint}

// left and right give a text a width, in columns.
func left(s string, width int) string {
	s = ansi.Truncate(s, width, "…")
	return s + strings.Repeat(" ", width-ansi.StringWidth(s))
}

// leftEnd keeps the end of a text that is too long: a name ends with its port.
func leftEnd(s string, width int) string {
	if n := ansi.StringWidth(s) - width; n > 0 {
		s = ansi.TruncateLeft(s, n+1, "…")
	}
	return left(s, width)
}

func right(s string, width int) string {
	s = ansi.Truncate(s, width, "…")
	return strings.Repeat(" ", width-ansi.StringWidth(s)) + s
}

// clean takes out of a text from elsewhere what a terminal would obey.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
