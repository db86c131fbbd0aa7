package exchange

import "sync"

// proofs is how many times a method must have been passed over before it is taken
// for oneway.
const proofs = 3

// maxMethods bounds what is remembered of methods, since clients name them. Of
// methods beyond it nothing is learned.
const maxMethods = 4096

// Methods knows which methods have no reply: those that the operator lists, and
// those of which that has been learned. It may be used by several machines at
// once.
//
// A method is learned as oneway once it was passed over three times, each time
// because the same client's later call on the same connection was answered first,
// was not answered within a second after that, and never was answered at all. It is
// not sound before servers that answer out of order: once one was seen to, nothing
// more is learned. An answer to a learned method unlearns it for good.
type Methods struct {
	// Learned, if not nil, is told what has been found out about a method.
	Learned func(method string, oneway bool)

	learn  bool
	listed map[string]bool

	mu       sync.RWMutex
	learned  map[string]*method
	disorder bool
}

type method struct {
	answered bool
	passed   int
	oneway   bool
}

// NewMethods returns Methods that hold those listed for oneway and, if told to,
// learn others.
func NewMethods(listed []string, learn bool) *Methods {
	m := &Methods{learn: learn, listed: make(map[string]bool), learned: make(map[string]*method)}
	for _, name := range listed {
		m.listed[name] = true
	}
	return m
}

// Oneway reports whether no reply comes to a call of the method.
func (m *Methods) Oneway(name string) bool {
	if m.listed[name] {
		return true
	}
	if !m.learn {
		return false
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	l := m.learned[name]
	return l != nil && l.oneway
}

// lists reports whether the operator lists the method.
func (m *Methods) lists(name string) bool { return m.listed[name] }

// open reports whether the method may be one without a reply, for all that is
// known: nobody has seen an answer yet. What has no name is not learned.
func (m *Methods) open(name string) bool {
	if !m.learn || name == "" {
		return false
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.disorder {
		return false
	}
	if l := m.learned[name]; l != nil {
		return !l.answered
	}
	return len(m.learned) < maxMethods
}

// answered notes that a call of the method has got its reply.
func (m *Methods) answered(name string) {
	if !m.learn {
		return
	}
	m.mu.RLock()
	l := m.learned[name]
	known := l != nil && l.answered
	m.mu.RUnlock()
	if known {
		return
	}
	unlearned := false
	m.mu.Lock()
	if l = m.get(name); l != nil {
		unlearned = l.oneway
		*l = method{answered: true}
	}
	m.mu.Unlock()
	if unlearned && m.Learned != nil {
		m.Learned(name, false)
	}
}

// passedOver notes that a later call was answered and this method's was not.
func (m *Methods) passedOver(name string) {
	if !m.learn {
		return
	}
	learned := false
	m.mu.Lock()
	l := m.get(name)
	if l != nil && !l.answered && !l.oneway && !m.disorder {
		l.passed++
		l.oneway = l.passed >= proofs
		learned = l.oneway
	}
	m.mu.Unlock()
	if learned && m.Learned != nil {
		m.Learned(name, true)
	}
}

// outOfOrder notes that a call was answered after a later one.
func (m *Methods) outOfOrder() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.disorder = true
}

// get is called with the lock held.
func (m *Methods) get(name string) *method {
	l := m.learned[name]
	if l == nil && len(m.learned) < maxMethods {
		l = new(method)
		m.learned[name] = l
	}
	return l
}
