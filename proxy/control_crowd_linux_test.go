package proxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// TestControlAtRandomUnderLoad changes everything that can be changed, a thousand times,
// while clients come, wait and are served, by any strategy: each gets what it asks for, no
// lease begins above max, nor at a backup while another is up, and nothing is left.
func TestControlAtRandomUnderLoad(t *testing.T) {
	enginetest.Each(t, testControlAtRandomUnderLoad)
}

func testControlAtRandomUnderLoad(t *testing.T) {
	changes := 1000
	if testing.Short() {
		changes = 200
	}
	for _, name := range []string{"raw", "requests"} {
		t.Run(name, func(t *testing.T) {
			play := func(changes int) func(*testing.T) {
				return func(t *testing.T) { unrest(t, name == "requests", changes) }
			}
			t.Run("once", play(20)) // opens what the runtime keeps
			fds, goroutines := descriptors(t), runtime.NumGoroutine()
			t.Run("long", play(changes))
			proxytest.Eventually(t, "the descriptors to be closed", func() bool { return descriptors(t) <= fds })
			proxytest.Eventually(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
		})
	}
}

// unrest has operators change a server while clients use it.
func unrest(t *testing.T, requests bool, changes int) {
	cfg, serve, ask := config(), echo, askRaw
	if requests {
		cfg, serve, ask = requestsConfig(), newEchoServer().serve, askCall
	}
	u := &upheaval{t: t, did: map[string]int{}}
	for range 5 {
		u.backends = append(u.backends, testBackend(t, 1+rand.IntN(4), serve))
	}
	cfg.Backends = u.backends[:2]
	cfg.MinIdle, cfg.PauseTimeout = 1, time.Minute
	cfg.Balance = balance.Strategies[rand.IntN(len(balance.Strategies))]
	u.f = start(t, cfg)

	ctx, stop := context.WithCancel(t.Context())
	var clients, others sync.WaitGroup
	var served atomic.Int64
	for worker := range 16 {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				u.visit(fmt.Sprintf("client %d, visit %d", worker, n), ask)
				served.Add(1)
			}
		})
	}
	others.Go(func() {
		for ctx.Err() == nil {
			u.audit()
		}
	})
	var operators sync.WaitGroup
	for operator := range 2 {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(operator)))
		operators.Go(func() {
			for range changes / 2 {
				u.change(rnd)
				after(time.Duration(rnd.IntN(1000)) * time.Microsecond)
			}
		})
	}
	operators.Wait()
	u.f.Resume()
	stop()
	clients.Wait()
	others.Wait()
	proxytest.Eventually(t, "the end of all", func() bool { return u.f.Stats().Clients == 0 })
	s := u.f.Stats()
	if total := served.Load(); s.Ended["done"] != total || len(s.Ended) != 1 || s.Errors != 0 || len(s.Faults) != 0 {
		t.Errorf("of %d sessions %v ended, with %d errors and faults %v; want all done", total, s.Ended, s.Errors, s.Faults)
	}
	t.Logf("%s: %d sessions, %d waits, %d audits, changes %v", cfg.Balance, served.Load(), s.Queued, u.audits, u.did)
}

type upheaval struct {
	t        *testing.T
	f        *front
	backends []Backend // the first is never taken away

	mu     sync.Mutex // held while something changes, or it is looked whether max holds
	did    map[string]int
	audits int
}

// change does one thing. What cannot be done now is refused.
func (u *upheaval) change(rnd *rand.Rand) {
	i := rnd.IntN(len(u.backends))
	b := u.backends[i]
	b.Max, b.Weight, b.Backup = 1+rnd.IntN(6), 1+rnd.IntN(3), rnd.IntN(3) == 0
	what := [...]string{"add", "add", "remove", "state", "state", "weight", "max", "limit", "pause", "resume", "resume"}[rnd.IntN(11)]
	if i == 0 && (what == "remove" || what == "state") {
		what = "max"
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	var err error
	switch what {
	case "add":
		err = u.f.Add(b)
	case "remove":
		err = u.f.Remove(b.String())
	case "state":
		err = u.f.SetState(b.String(), State(rnd.IntN(3)))
	case "weight":
		err = u.f.SetWeight(b.String(), b.Weight)
	case "max":
		err = u.f.SetMax(b.String(), b.Max)
	case "limit":
		n := rnd.IntN(4)
		err = u.f.change(b.String(), func(d *dispatcher, b *backend) { d.bal.SetLimit(b.index, n) }) // as a slow start does
	case "pause":
		err = u.f.Pause()
	case "resume":
		u.f.Resume()
	}
	if err == nil {
		u.did[what]++
	} else if i == 0 && what != "add" {
		u.t.Errorf("%s of a backend that is always there: %v", what, err)
	}
}

// audit looks twice, while nothing is changed: what was active above the bound the first
// time may still be, but no more than that; and where no lease may begin none has.
func (u *upheaval) audit() {
	after(time.Duration(rand.IntN(500)) * time.Microsecond)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.audits++
	before := u.f.Stats()
	after(time.Duration(rand.IntN(500)) * time.Microsecond)
	now := u.f.Stats()
	otherUp := slices.ContainsFunc(now.Backends, func(b BackendStats) bool { return b.Status == "up" && !b.Backup })
	for i := range now.Backends {
		b := &now.Backends[i]
		j := slices.IndexFunc(before.Backends, func(o BackendStats) bool { return o.String() == b.String() })
		if j < 0 {
			u.t.Errorf("backend %v has come by itself", b.Backend)
			continue
		}
		was, most := before.Backends[j].Load, b.Load.Bound()
		if b.Status != "up" || !now.Paused.IsZero() || b.Backup && otherUp {
			most = 0
		}
		if n := b.Load.Active(); n > max(most, was.Active()) {
			u.t.Errorf("backend %+v (%s, paused %v) has %d active, of %d, and had %d", b.Backend, b.Status, !now.Paused.IsZero(), n, most, was.Active())
		}
		if free := b.Load.Slots[balance.Free]; b.Load.Open()+free != max(b.Max, b.Load.Open()) {
			u.t.Errorf("backend %v has the slots %v", b.Backend, b.Load.Slots)
		}
	}
}

// visit is one session: it asks a few times, and gets its own answers.
func (u *upheaval) visit(text string, ask func(c net.Conn, text string) (string, error)) {
	c, err := net.Dial("tcp", u.f.at.String())
	if err != nil {
		u.t.Error(err)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	for n := range 1 + rand.IntN(4) {
		text := fmt.Sprintf("%s, request %d", text, n)
		if got, err := ask(c, text); err != nil || got != text {
			u.t.Errorf("%s is answered with %q, %v", text, got, err)
			return
		}
		after(time.Duration(rand.IntN(300)) * time.Microsecond)
	}
}

func askRaw(c net.Conn, text string) (string, error) {
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	got := make([]byte, len(text))
	n, err := io.ReadFull(c, got)
	return string(got[:n]), err
}

func askCall(c net.Conn, text string) (string, error) {
	m, err := ask(c, call(7, text))
	return m.text, err
}
