package balance

// leastConn takes the lowest active/bound, and turns on ties.
type leastConn struct{ turns }

func (l *leastConn) hold(i int, m *member) { l.turns.hold(i, m.active, m.Bound(), m) }
func (l *leastConn) next(Client) int       { return l.turn() }

// weightedRoundRobin takes turns as if all were tied.
type weightedRoundRobin struct{ turns }

func (w *weightedRoundRobin) hold(i int, m *member) { w.turns.hold(i, 0, 1, m) }
func (w *weightedRoundRobin) next(Client) int       { return w.turn() }
