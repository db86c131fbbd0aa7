package top

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"forebay/proxy/admin"
)

// parts are the states of connections in a bar. Their signs differ, for those who see
// no colours.
var parts = []struct {
	name  string
	sign  string
	style ansi.Style
	of    func(admin.Backend) int
}{
	{"leased", "█", ansi.Style{}.ForegroundColor(ansi.Blue), func(b admin.Backend) int { return b.Leased }},
	{"dialing", "▓", ansi.Style{}.ForegroundColor(ansi.Yellow), func(b admin.Backend) int { return b.Dialing }},
	{"closing", "▒", ansi.Style{}.ForegroundColor(ansi.Magenta), func(b admin.Backend) int { return b.Closing }},
	{"idle", "░", ansi.Style{}.ForegroundColor(ansi.Cyan), func(b admin.Backend) int { return b.Idle }},
}

const free = "·"

// bar draws the connections of a backend as parts of its max, or of what is open where
// that is more: a max that was lowered takes its time.
func (p pen) bar(b admin.Backend, width int) string {
	whole := max(b.Max, b.Leased+b.Dialing+b.Closing+b.Idle, 1)
	var s strings.Builder
	drawn, sum := 0, 0
	for _, part := range parts {
		sum += part.of(b)
		end := (2*sum*width + whole) / (2 * whole) // rounded
		s.WriteString(p.write(part.style, strings.Repeat(part.sign, end-drawn)))
		drawn = end
	}
	return s.String() + p.write(faint, strings.Repeat(free, width-drawn))
}

// legend explains the bars.
func (p pen) legend() string {
	var all []string
	for _, part := range parts {
		all = append(all, p.write(part.style, part.sign)+p.write(faint, " "+part.name))
	}
	return strings.Join(append(all, p.write(faint, free+" free")), "  ")
}
