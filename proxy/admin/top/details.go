package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"forebay/proxy/admin"
)

// ordinary are the reasons for which sessions end without a fault.
var ordinary = map[string]bool{"done": true, "client_left": true, "client_reset": true, "drained": true}

// clientErrors counts what clients met: sessions ended by a fault, and requests without
// a reply.
func clientErrors(p admin.Pools) int64 {
	n := p.Errors
	for reason, ended := range p.Ended {
		if !ordinary[reason] {
			n += ended
		}
	}
	return n
}

// details are the lines below the table: the backend that is chosen, and what went
// wrong anywhere.
func (m *model) details() []string {
	p := m.pen()
	lines := []string{"  " + p.legend()}
	if b, ok := m.chosenBackend(); ok && !m.plain {
		lines = append(append(lines, ""), m.ofBackend(p, b)...)
	} else {
		lines = append(lines, m.whys(p)...)
	}
	errors := m.errors(p)
	if len(errors) > 0 {
		errors = append([]string{"", p.write(faint, "errors (in the last minute)")}, errors...)
	}
	return append(lines, errors...)
}

// whys are why the backends are as they are, where nobody can choose one.
func (m *model) whys(p pen) []string {
	lines := []string{""}
	for _, b := range m.sorted() {
		if cmp.Or(b.Why, b.LastError) != "" {
			lines = append(lines, heading(p, b))
		}
	}
	if len(lines) == 1 {
		return nil
	}
	return lines
}

// heading is the name and the state of a backend, and why.
func heading(p pen, b admin.Backend) string {
	line := p.write(strong, clean(b.Name)) + "  " + p.write(stateStyles[b.State], clean(b.State))
	if b.Backup {
		line += "  backup"
	}
	if why := clean(cmp.Or(b.Why, b.LastError)); why != "" {
		line += "  " + why
	}
	return line
}

func (m *model) ofBackend(p pen, b admin.Backend) []string {
	up, _ := m.samples.rate(each(b.Name, bytesUp))
	down, _ := m.samples.rate(each(b.Name, bytesDown))
	return []string{
		heading(p, b),
		fmt.Sprintf("weight %d, %d sessions, %d requests, %sB/s up, %sB/s down", b.Weight, b.Sessions, b.Requests, short(up), short(down)),
		fmt.Sprintf("%d dials, %d failed, %d leases found a connection ready", b.Dials, b.DialErrors, b.Reused),
		p.write(faint, "closed ") + m.reasons(b.Closes, func(reason string) counter {
			return each(b.Name, func(b admin.Backend) int64 { return b.Closes[reason] })
		}),
	}
}

// errors are lines of what went wrong, by kind and reason.
func (m *model) errors(p pen) []string {
	pools := m.samples.last().pools
	ended := maps.Clone(pools.Ended)
	maps.DeleteFunc(ended, func(reason string, _ int64) bool { return ordinary[reason] })
	var lines []string
	for _, kind := range []struct {
		title  string
		counts map[string]int64
		of     func(admin.Pools) map[string]int64
	}{
		{"sessions ", ended, func(p admin.Pools) map[string]int64 { return p.Ended }},
		{"requests ", pools.Faults, func(p admin.Pools) map[string]int64 { return p.Faults }},
	} {
		text := m.reasons(kind.counts, func(reason string) counter {
			return total(func(p admin.Pools) int64 { return kind.of(p)[reason] })
		})
		if text != "none" {
			lines = append(lines, p.write(faint, kind.title)+text)
		}
	}
	return lines
}

// reasons writes the counts that are not 0, the highest first, and in brackets what was
// added in the last minute.
func (m *model) reasons(counts map[string]int64, of func(reason string) counter) string {
	names := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	var all []string
	for _, name := range names {
		if counts[name] == 0 {
			continue
		}
		text := fmt.Sprintf("%s %d", clean(name), counts[name])
		if n := m.samples.recent(of(name)); n > 0 {
			text += fmt.Sprintf(" (%d)", n)
		}
		all = append(all, text)
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}
