package exchange

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"forebay/proxy/frame"
)

// TestModel has several clients, of which some misbehave, share the connections to
// backends, of which some do, over a pool, in synthetic time. What a request carries
// names its client and its number, and so must what comes back.
func TestModel(t *testing.T) {
	runs := 1500
	if testing.Short() {
		runs = 100
	}
	seen := map[string]int{}
	for seed := range uint64(runs) {
		w := newWorld(seed)
		if err := w.run(); err != nil {
			t.Fatalf("seed %d (%s): %v", seed, w, err)
		}
		for what, n := range w.seen {
			seen[what] += n
		}
	}
	if testing.Short() {
		return
	}
	// A model in which these do not happen shows nothing.
	for _, what := range []string{"reply", "exception", "reused", "stale", "repeat", "oneway", "learned", "end finished",
		"end gone", "end malformed", "end broken", "end idle", "end closed", "end drained", "end cut", "fault wrong_reply", "fault stray_bytes", "fault oneway_answered",
		"fault malformed_reply", "fault early_reply", "fault reply_timeout", "fault backend_ended", "fault bad_exception",
		"fault unfinished_request", "fault unread_reply"} {
		if seen[what] == 0 {
			t.Errorf("%s: never", what)
		}
	}
}

// world is all there is in one run.
type world struct {
	rng      *rand.Rand
	cfg      *Config
	now      time.Time
	clients  []*simClient
	conns    []*simConn // that are open
	idle     []*simConn
	max      int
	learn    bool
	hostile  bool // some backends are
	executed map[string]int
	seen     map[string]int
}

func (w *world) String() string {
	return fmt.Sprintf("session %v, learn %v, hostile %v, abort on FIN %v, quarantine %v", w.cfg.Session, w.learn, w.hostile,
		w.cfg.AbortOnFIN, w.cfg.Quarantine)
}

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{rng: rng, now: start, executed: map[string]int{}, seen: map[string]int{}, max: 1 + rng.IntN(3)}
	w.learn, w.hostile = w.chance(50), w.chance(60)
	w.cfg = &Config{
		Codec:        frame.NewThrift(frame.Thrift{}),
		Methods:      NewMethods([]string{"listed"}, w.learn),
		Budget:       &Budget{Max: []int64{0, 50 << 10, 1 << 20}[rng.IntN(3)]},
		Session:      w.chance(20),
		Idempotent:   map[string]bool{"get": true},
		AbortOnFIN:   w.chance(15),
		ReplyTimeout: replyTimeout,
		IdleTimeout:  []time.Duration{idleTimeout, 5 * time.Second, time.Hour}[rng.IntN(3)],
		Quarantine:   []time.Duration{0, quarantine, 20 * time.Second}[rng.IntN(3)],
		ReplyBuffer:  []int{0, 10 << 10, 256 << 10}[rng.IntN(3)],
	}
	w.cfg.Methods.Learned = func(string, bool) { w.seen["learned"]++ }
	for i := range 1 + rng.IntN(4) {
		w.clients = append(w.clients, w.newClient(i))
	}
	return w
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

// some returns how many of n are taken at once.
func (w *world) some(n int) int {
	if n == 0 || w.chance(60) {
		return n
	}
	return 1 + w.rng.IntN(n)
}

func (w *world) run() error {
	for range 100000 {
		moved, left := false, false
		for _, i := range w.rng.Perm(len(w.clients)) {
			c := w.clients[i]
			if c.done {
				continue
			}
			left = true
			ok, err := c.step()
			if err != nil {
				return fmt.Errorf("client %d: %w", c.number, err)
			}
			moved = moved || ok
		}
		if !left {
			return w.finish()
		}
		for _, b := range w.conns {
			moved = b.work() || moved
		}
		if !moved || w.chance(1) {
			if err := w.wait(); err != nil && !moved {
				return err
			}
		}
	}
	return errors.New("it does not end")
}

// wait lets time pass until something is to happen.
func (w *world) wait() error {
	next := time.Time{}
	sooner := func(t time.Time) {
		if t.After(w.now) {
			next = earlier(next, t)
		}
	}
	leasing := false
	for _, c := range w.clients {
		if !c.done {
			sooner(c.until)
			sooner(c.pause)
			leasing = leasing || c.leasing
		}
	}
	for _, b := range w.conns {
		sooner(b.lateAt)
	}
	if !next.IsZero() {
		w.now = next
	} else if !leasing {
		var stuck []string
		for _, c := range w.clients {
			if !c.done {
				stuck = append(stuck, show(c.m.Next(w.now)))
			}
		}
		return fmt.Errorf("nothing is to happen, ever: %q", stuck)
	}
	return nil
}

func (w *world) finish() error {
	for key, n := range w.executed {
		if n > 1 && !strings.Contains(key, "get") || n > 2 {
			return fmt.Errorf("%s was executed %d times", key, n)
		}
	}
	if held := w.cfg.Budget.Held(); held != 0 {
		return fmt.Errorf("%d bytes of the budget are held", held)
	}
	return nil
}

// take leases a connection: an idle one that looks alive, or a new one.
func (w *world) take() *simConn {
	for len(w.idle) > 0 {
		i := w.rng.IntN(len(w.idle))
		b := w.idle[i]
		w.idle = append(w.idle[:i], w.idle[i+1:]...)
		if len(b.out) == 0 && (!b.eof || w.chance(50)) {
			w.seen["reused"]++
			return b
		}
		w.close(b)
	}
	if len(w.conns) == w.max {
		return nil
	}
	b := &simConn{world: w, exchange: NewConn(), scanner: w.cfg.Codec.Requests()}
	if w.hostile && w.chance(60) {
		b.way = way(1 + w.rng.IntN(int(ways-1)))
	}
	w.conns = append(w.conns, b)
	return b
}

func (w *world) close(b *simConn) {
	for i := range w.conns {
		if w.conns[i] == b {
			w.conns = append(w.conns[:i], w.conns[i+1:]...)
			return
		}
	}
}
