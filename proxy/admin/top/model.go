package top

import (
	"context"
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"

	"forebay/proxy/admin"
)

// model is the view. Messages change it: Update takes one at a time.
type model struct {
	cfg      Config
	ctx      context.Context
	interval time.Duration

	width, height int
	plain         bool // no styles

	samples  samples // empty before the first answer
	err      error   // of the last look
	chosen   string  // the name of a backend
	sort     order
	question *question // that is asked now
	notice   string    // what became of the last change
}

func newModel(ctx context.Context, cfg Config) *model {
	m := &model{cfg: cfg, ctx: ctx, interval: cfg.Interval, width: 80, height: 24}
	if m.interval == 0 {
		m.interval = defaultInterval
	}
	return m
}

// looked is an answer, or its absence. again is for the look that the next one follows.
type looked struct {
	sample
	err   error
	again bool
}

// changed is what became of a change.
type changed struct {
	what string
	err  error
}

type next struct{} // it is time for a look

// look asks the source.
func (m *model) look() looked {
	p, err := m.cfg.Source.Pools(m.ctx)
	return looked{sample: sample{time.Now(), p}, err: err}
}

// Init begins the looks.
func (m *model) Init() tea.Cmd { return m.lookAndGoOn }

func (m *model) lookAndGoOn() tea.Msg {
	l := m.look()
	l.again = true
	return l
}

// Update takes a message, and returns what is to be done about it.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	case next:
		return m, m.lookAndGoOn
	case looked:
		m.take(msg)
		if msg.again {
			return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return next{} })
		}
	case changed:
		m.notice = "done: " + msg.what
		if msg.err != nil {
			m.notice = msg.err.Error()
		}
		return m, func() tea.Msg { return m.look() }
	}
	return m, nil
}

// take keeps an answer. Without one the view stays as it was, and says so.
func (m *model) take(l looked) {
	m.err = l.err
	if l.err != nil {
		return
	}
	m.samples = m.samples.add(l.sample)
	if _, ok := m.chosenBackend(); !ok {
		m.chosen = ""
		if sorted := m.sorted(); len(sorted) > 0 {
			m.chosen = sorted[0].Name
		}
	}
}

// View draws the frame.
func (m *model) View() tea.View {
	v := tea.NewView(m.frame())
	v.AltScreen = true
	v.WindowTitle = "forebay " + m.cfg.Address
	return v
}

// A question is asked before a change is made.
type question struct {
	what string
	do   func(context.Context) error
}

// press does what a key stands for.
func (m *model) press(key string) tea.Cmd {
	if key == "ctrl+c" {
		return tea.Quit
	}
	if m.question != nil {
		return m.answer(key)
	}
	m.notice = ""
	switch key {
	case "q":
		return tea.Quit
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "s":
		m.sort = (m.sort + 1) % numOrders
	case "d", "r", "m", "p":
		m.ask(key)
	}
	return nil
}

// answer takes the answer to the question.
func (m *model) answer(key string) tea.Cmd {
	q := m.question
	m.question = nil
	if key != "y" && key != "enter" {
		m.notice = "not done: " + q.what
		return nil
	}
	return func() tea.Msg { return changed{q.what, q.do(m.ctx)} }
}

// ask asks about the change that a key stands for.
func (m *model) ask(key string) {
	if !m.cfg.Changes {
		m.notice = "changes need a token: --token-file"
		return
	}
	if len(m.samples) == 0 {
		return
	}
	if key == "p" {
		m.question = m.pauseOrResume()
		return
	}
	b, ok := m.chosenBackend()
	if !ok {
		return
	}
	state := map[string]string{"d": "drain", "r": "ready", "m": "maintain"}[key]
	m.question = &question{
		what: fmt.Sprintf("%s %s", state, b.Name),
		do:   func(ctx context.Context) error { return m.cfg.Source.SetState(ctx, b.Name, state) },
	}
}

func (m *model) pauseOrResume() *question {
	if m.samples.last().pools.Queue.Paused {
		return &question{"resume", m.cfg.Source.Resume}
	}
	return &question{"pause: clients wait in the queue", m.cfg.Source.Pause}
}

// chosenBackend returns the backend that is chosen, if it is there.
func (m *model) chosenBackend() (admin.Backend, bool) {
	if len(m.samples) > 0 {
		for _, b := range m.samples.last().pools.Backends {
			if b.Name == m.chosen {
				return b, true
			}
		}
	}
	return admin.Backend{}, false
}

// move chooses the backend that is n rows away, as far as there are rows.
func (m *model) move(n int) {
	sorted := m.sorted()
	for i, b := range sorted {
		if b.Name == m.chosen {
			m.chosen = sorted[min(max(i+n, 0), len(sorted)-1)].Name
			return
		}
	}
}
