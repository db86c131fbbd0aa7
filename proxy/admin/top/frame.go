package top

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"forebay/proxy/admin"
)

func (m *model) pen() pen { return pen{m.plain} }

// frame draws the view, as a text of at most height lines of at most width columns.
func (m *model) frame() string {
	lines := m.lines()
	for i, line := range lines {
		lines[i] = strings.TrimRight(ansi.Truncate(line, m.width, "…"), " ")
	}
	return strings.Join(lines[:min(len(lines), max(m.height, 1))], "\n")
}

// tall is the height from which the numbers of the whole proxy are shown too.
const tall = 12

func (m *model) lines() []string {
	lines := []string{m.title()}
	if len(m.samples) == 0 {
		return m.withFooter(append(lines, "", m.waiting()))
	}
	if m.height >= tall {
		lines = append(lines, m.summary()...)
		lines = append(lines, "")
	}
	backends := m.sorted()
	head, rows := m.table(backends)
	lines = append(lines, head)
	details := m.details()
	room := max(m.height-len(lines)-1, 1) // for the rows and the details: the footer is below
	n := max(room-len(details), room-room/3)
	rows = m.visible(rows, n, backends)
	lines = append(lines, rows...)
	return m.withFooter(append(lines, details[:min(max(room-len(rows), 0), len(details))]...))
}

// visible returns at most n rows, the chosen one among them.
func (m *model) visible(rows []string, n int, backends []admin.Backend) []string {
	if len(rows) <= n {
		return rows
	}
	first := 0
	for i, b := range backends {
		if b.Name == m.chosen {
			first = min(max(i-n/2, 0), len(rows)-n)
		}
	}
	return rows[first : first+n]
}

// title is the first line: what is looked at, and when it last answered.
func (m *model) title() string {
	p := m.pen()
	t := p.write(strong, "forebay") + " " + m.cfg.Address
	if len(m.samples) > 0 {
		t += "  " + p.write(faint, m.samples.last().at.Format("15:04:05"))
	}
	if len(m.samples) > 0 && m.samples.last().pools.Draining {
		t += "  " + p.write(warn, "draining")
	}
	if len(m.samples) > 0 && m.err != nil {
		t += "  " + p.write(bad, "no answer since: "+clean(m.err.Error()))
	}
	return t
}

// waiting is what stands there before the first answer.
func (m *model) waiting() string {
	if m.err != nil {
		return m.pen().write(bad, clean(m.err.Error()))
	}
	return "asking the proxy"
}

// summary is the picture: clients, queue, backends.
func (m *model) summary() []string {
	s, p := m.samples, m.pen()
	pools := s.last().pools
	up, leased, most := 0, 0, 0
	for _, b := range pools.Backends {
		leased, most = leased+b.Leased, most+b.Max
		if b.State == "up" {
			up++
		}
	}
	line := func(label, a, b, c string) string {
		return p.write(faint, left(label, 10)) + left(a, 17) + " " + left(b, 22) + " " + c
	}
	return []string{
		line("clients", fmt.Sprintf("%d sessions", pools.Sessions), m.rate(total(accepted))+" sessions/s",
			m.rate(total(func(p admin.Pools) int64 { return p.Requests }))+" requests/s"+m.failing()),
		line("queue", fmt.Sprintf("%d waiting", pools.Queue.Length), "wait "+m.wait()+", max "+span(pools.Queue.MaxMS), m.standing()),
		line("backends", fmt.Sprintf("%d of %d up", up, len(pools.Backends)), fmt.Sprintf("%d of %d leased", leased, most),
			m.rate(all(bytesUp))+"B/s up, "+m.rate(all(bytesDown))+"B/s down"),
	}
}

// failing says how many errors clients have met lately, if any.
func (m *model) failing() string {
	if n := m.samples.recent(total(clientErrors)); n > 0 {
		return ", " + m.pen().write(bad, fmt.Sprintf("%d errors", n))
	}
	return ""
}

// wait is how long those waited, on average, whose wait ended in the last minute.
func (m *model) wait() string {
	from, to := m.samples.since(recentSpan).pools.Queue, m.samples.last().pools.Queue
	if n := to.Waits - from.Waits; n > 0 {
		return span((to.WaitMS - from.WaitMS) / float64(n))
	}
	return "-"
}

// standing says what is out of the ordinary with those who wait.
func (m *model) standing() string {
	var all []string
	pools, p := m.samples.last().pools, m.pen()
	if pools.Queue.Paused {
		all = append(all, p.write(warn, "paused for "+span(pools.Queue.PausedMS)))
	}
	if pools.Desyncs > 0 {
		all = append(all, p.write(bad, fmt.Sprintf("%d desyncs", pools.Desyncs)))
	}
	return strings.Join(all, ", ")
}

// withFooter puts the last line at the bottom of the screen. What is written once has
// no keys.
func (m *model) withFooter(lines []string) []string {
	if m.plain {
		return lines
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	return append(lines[:max(m.height-1, 0)], m.footer())
}

// footer is the question, or what became of it, or the keys.
func (m *model) footer() string {
	p := m.pen()
	switch {
	case m.question != nil:
		return p.write(warn, clean(m.question.what)+"? y: yes, any other key: no")
	case m.notice != "":
		return clean(m.notice)
	}
	keys := "q quit  ↑↓ choose  s sort: " + m.sort.String()
	if m.cfg.Changes {
		keys += "  d drain  r ready  m maintain  p " + m.pauseKey()
	}
	return p.write(faint, keys)
}

func (m *model) pauseKey() string {
	if len(m.samples) > 0 && m.samples.last().pools.Queue.Paused {
		return "resume"
	}
	return "pause"
}
