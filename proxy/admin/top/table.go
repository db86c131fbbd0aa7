package top

import (
	"fmt"
	"strings"

	"forebay/proxy/admin"
)

// A column of the table of the backends. What does not fit is left out, the highest
// rank first.
type column struct {
	title string
	width int
	rank  int
	cell  func(*model, admin.Backend) string
}

// The name of a backend and its bar share what the columns leave.
const (
	minName, maxName = 14, 40
	minBar, maxBar   = 4, 40
)

var columns = []column{
	{"leased", 9, 1, func(_ *model, b admin.Backend) string { return fmt.Sprintf("%d/%d", b.Leased, b.Max) }},
	{"idle", 4, 5, func(_ *model, b admin.Backend) string { return fmt.Sprint(b.Idle) }},
	{"dial", 4, 8, func(_ *model, b admin.Backend) string { return fmt.Sprint(b.Dialing) }},
	{"clos", 4, 9, func(_ *model, b admin.Backend) string { return fmt.Sprint(b.Closing) }},
	{"weight", 6, 7, func(_ *model, b admin.Backend) string { return fmt.Sprint(b.Weight) }},
	{"sess/s", 6, 3, func(m *model, b admin.Backend) string { return m.rate(each(b.Name, sessions)) }},
	{"req/s", 6, 2, func(m *model, b admin.Backend) string { return m.rate(each(b.Name, requests)) }},
	{"bytes/s", 7, 6, func(m *model, b admin.Backend) string {
		return m.rate(each(b.Name, func(b admin.Backend) int64 { return b.BytesUp + b.BytesDown }))
	}},
	{"errors", 6, 4, func(m *model, b admin.Backend) string { return fmt.Sprint(m.samples.recent(each(b.Name, failures))) }},
}

const (
	markWidth  = 2
	stateWidth = 8
)

func (m *model) rate(c counter) string { return rateOf(m.samples.rate(c)) }

// layout is which columns are shown, and how wide the others are.
type layout struct {
	columns   []column
	name, bar int
}

func (m *model) layout(backends []admin.Backend) layout {
	l := layout{columns: columns}
	room := func() int {
		n := m.width - markWidth - stateWidth - 2 // a space behind the name, and one behind the state
		for _, c := range l.columns {
			n -= c.width + 1
		}
		return n
	}
	for rank := len(columns); rank > 0 && room() < minName+minBar; rank-- {
		l.columns = without(l.columns, rank)
	}
	longest := minName
	for _, b := range backends {
		longest = max(longest, len(b.Name))
	}
	l.name = max(min(longest, maxName, room()), 1)
	l.bar = min(max(room()-l.name, 0), maxBar)
	return l
}

// state writes the state of a backend. That of a backup that is up is that it is one: it
// is not in use, as a rule.
func (p pen) state(b admin.Backend) string {
	if b.Backup && b.State == "up" {
		return p.write(faint, "backup")
	}
	return p.write(stateStyles[b.State], clean(b.State))
}

func without(columns []column, rank int) []column {
	var rest []column
	for _, c := range columns {
		if c.rank != rank {
			rest = append(rest, c)
		}
	}
	return rest
}

// table returns the head of the table, and a line for each backend.
func (m *model) table(backends []admin.Backend) (head string, rows []string) {
	l, p := m.layout(backends), m.pen()
	head = strings.Repeat(" ", markWidth) + left("backend", l.name) + " " + left("state", stateWidth) + " " + left("load", l.bar)
	for _, c := range l.columns {
		head += " " + right(c.title, c.width)
	}
	for _, b := range backends {
		rows = append(rows, m.row(l, p, b))
	}
	return p.write(faint, head), rows
}

func (m *model) row(l layout, p pen, b admin.Backend) string {
	mark, name := "  ", leftEnd(clean(b.Name), l.name)
	if b.Name == m.chosen && !m.plain {
		mark, name = "▸ ", p.write(strong, name)
	}
	row := mark + name + " " + left(p.state(b), stateWidth) + " " + p.bar(b, l.bar)
	for _, c := range l.columns {
		cell := right(c.cell(m, b), c.width)
		if c.title == "errors" && strings.TrimSpace(cell) != "0" {
			cell = p.write(bad, cell)
		}
		row += " " + cell
	}
	return row
}
