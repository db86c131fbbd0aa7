package pool

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/puddle/v2"
)

// state is what a slot is used for, in the referee's book.
type state int

const (
	free state = iota
	idle
	dialing
	ahead
	leased
	closing
	expiring
	numStates
)

func (s state) String() string {
	return []string{"free", "idle", "dialing", "ahead", "leased", "closing", "expiring"}[s]
}

// referee is the authority over the slots that the tests use, and a strict one:
// it fails the test where a slot moves that is not there, where more connections
// are open than slots are in use. It keeps a record of what the pool has told it.
type referee struct {
	t        testing.TB
	parallel int // dials ahead at once

	// before is called at the beginning of each method of Slots with its name,
	// without the lock. Nil means nothing.
	before func(method string)

	mu        sync.Mutex
	counts    [numStates]int
	max       int
	open      int // connections that are open or being dialed
	down      bool
	since     time.Time // of the last change of down
	waiting   bool      // a client waits: nothing is dialed ahead
	flush     func()    // the pool's
	began     time.Time // of the newest dial that failed
	succeeded int       // dials
	said      []string  // the methods called, but for Ahead, Expire, Expired
	want      int       // what Ahead was asked last
	granted   int       // dials that Ahead has allowed
	expired   int       // connections whose slots Expired freed
	most      [numStates]int
}

func newReferee(t testing.TB, max int) *referee {
	ref := &referee{t: t, max: max, parallel: max}
	ref.counts[free] = max
	return ref
}

// enter calls before and locks.
func (ref *referee) enter(method string) {
	if ref.before != nil {
		ref.before(method)
	}
	ref.mu.Lock()
}

func (ref *referee) try(from, to state) bool {
	if ref.counts[from] == 0 {
		return false
	}
	ref.counts[from]--
	if to != free || ref.used() < ref.max {
		ref.counts[to]++
	}
	ref.most[to] = max(ref.most[to], ref.counts[to])
	ref.bound()
	return true
}

func (ref *referee) must(from, to state) {
	ref.t.Helper()
	if !ref.try(from, to) {
		ref.t.Errorf("illegal: no slot is %v, to become %v", from, to)
	}
}

// bound checks that each connection has a slot.
func (ref *referee) bound() {
	if used := ref.used(); ref.open > used {
		ref.t.Errorf("%d connections are open, and %d slots in use", ref.open, used)
	}
}

// used returns how many slots are not free.
func (ref *referee) used() (n int) {
	for _, count := range ref.counts[free+1:] {
		n += count
	}
	return n
}

// setMax changes how many slots there are.
func (ref *referee) setMax(n int) {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	ref.max = n
	ref.counts[free] = max(0, n-ref.used())
}

func (ref *referee) slots() int {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	return ref.max
}

func (ref *referee) opened() {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	ref.open++
	ref.bound()
}

func (ref *referee) closed() {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	ref.open--
}

// move is for what the tests do as clients.
func (ref *referee) move(from, to state) {
	ref.t.Helper()
	ref.mu.Lock()
	defer ref.mu.Unlock()
	ref.must(from, to)
}

// pick reserves a slot for a client, as balance does.
func (ref *referee) pick() (ready, ok bool) {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	if ref.down {
		return false, false
	}
	if ref.try(idle, leased) {
		return true, true
	}
	return false, ref.try(free, dialing)
}

func (ref *referee) count(s state) int {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	return ref.counts[s]
}

func (ref *referee) isDown() bool {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	return ref.down
}

// refuse has Ahead say no, as it does while a client waits.
func (ref *referee) refuse(waiting bool) {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	ref.waiting = waiting
}

// grants returns how many dials Ahead has allowed.
func (ref *referee) grants() int {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	return ref.granted
}

// reserveAhead takes a slot for a dial ahead, whatever is wanted.
func (ref *referee) reserveAhead() {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	ref.must(free, ahead)
	ref.granted++
}

// mostIdle returns how many lay idle at most.
func (ref *referee) mostIdle() int {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	return ref.most[idle]
}

// events returns what the pool has said.
func (ref *referee) events() []string {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	return slices.Clone(ref.said)
}

func (ref *referee) lastWant() int {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	return ref.want
}

func (ref *referee) Ahead(want int) bool {
	ref.enter("Ahead")
	defer ref.mu.Unlock()
	ref.want = want
	if ref.down || ref.waiting || ref.counts[ahead] >= ref.parallel || ref.counts[idle]+ref.counts[ahead] >= want || !ref.try(free, ahead) {
		return false
	}
	ref.granted++
	return true
}

func (ref *referee) AheadDone(ok bool) {
	ref.enter("AheadDone")
	defer ref.mu.Unlock()
	ref.said = append(ref.said, fmt.Sprintf("AheadDone(%v)", ok))
	if ok {
		ref.must(ahead, idle)
	} else {
		ref.must(ahead, free)
	}
}

func (ref *referee) Orphaned() {
	ref.enter("Orphaned")
	defer ref.mu.Unlock()
	ref.said = append(ref.said, "Orphaned")
	ref.must(dialing, ahead)
}

func (ref *referee) Expire() bool {
	ref.enter("Expire")
	defer ref.mu.Unlock()
	return ref.try(idle, expiring)
}

func (ref *referee) Expired() {
	ref.enter("Expired")
	defer ref.mu.Unlock()
	ref.expired++
	ref.must(expiring, free)
}

func (ref *referee) Surplus() int {
	ref.mu.Lock() // every sweep comes here: not worth a call of before
	defer ref.mu.Unlock()
	stay := ref.used() - ref.counts[closing] - ref.counts[expiring]
	return max(0, min(ref.counts[idle], stay-ref.max))
}

// DialFailed takes the backend down: one failure is enough for that, if it did not begin
// before the last change.
func (ref *referee) DialFailed(began time.Time, err error) {
	ref.enter("DialFailed")
	if err == nil || IsLocal(err) || errors.Is(err, puddle.ErrNotAvailable) || errors.Is(err, errNoIdle) {
		ref.t.Errorf("a dial failed because of %v", err)
	}
	ref.said = append(ref.said, "DialFailed")
	ref.began = began
	news := !began.Before(ref.since)
	if news {
		ref.down, ref.since = true, time.Now()
	}
	ref.mu.Unlock()
	if news {
		ref.flush()
	}
}

func (ref *referee) DialSucceeded() {
	ref.enter("DialSucceeded")
	defer ref.mu.Unlock()
	ref.succeeded++
}

// comesUp puts the backend back.
func (ref *referee) comesUp() {
	ref.mu.Lock()
	defer ref.mu.Unlock()
	ref.down, ref.since = false, time.Now()
}
