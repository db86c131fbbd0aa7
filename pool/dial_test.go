package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheDialTimeoutReachesTheDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.back.whenDialed(hangs)
		begin := time.Now()
		_, err := r.dial(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Dial() = %v, want that the deadline has passed", err)
		}
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("it took %v, want the dial timeout of 5s", took)
		}
		if !r.slots.isDown() {
			t.Error("a backend that does not answer is not down")
		}
	})
}

func TestADialErrorIsTheClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		want := errors.New("no")
		r.back.whenDialed(fails(want))
		if _, err := r.dial(t.Context()); err != want {
			t.Errorf("Dial() = %v, want the dial's error", err)
		}
		if got := r.slots.count(free); got != 10 {
			t.Errorf("%d slots are free, want all: they are the caller's", got)
		}
	})
}

func TestAClientThatLeavesLeavesItsDialBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		r.back.whenDialed(takes(time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_, err := r.dial(ctx)
		if !errors.Is(err, ErrOrphaned) {
			t.Fatalf("Dial() = %v, want %v", err, ErrOrphaned)
		}
		if took := time.Since(begin); took != 300*time.Millisecond {
			t.Errorf("the client was held for %v", took)
		}
		if got := r.slots.count(ahead); got != 1 {
			t.Errorf("%d slots dial ahead, want the client's", got)
		}

		time.Sleep(time.Second)
		if got := r.slots.events(); !slices.Equal(got, []string{"Orphaned", "AheadDone(true)"}) {
			t.Errorf("the pool said %v", got)
		}
		l := r.take()
		if l == nil || !l.Ready {
			t.Fatalf("Take() = %+v, want the connection of the client that left", l)
		}
		r.keep(l, false)
		r.back.all()[0].says(false, fin)
		untilWatched()
		r.wantIdle(0)
	})
}

func TestTheConnectionOfAClientThatLeftIsWatched(t *testing.T) {
	tests := []struct {
		name  string
		bytes bool
		end   error
		after time.Duration
		want  map[string]int64
	}{
		{name: "its end is seen", end: fin, want: map[string]int64{"backend_closed": 1}},
		{name: "its greeting is kept", bytes: true, want: map[string]int64{}},
		{name: "its time passes", after: 30 * time.Second, want: map[string]int64{"virgin_timeout": 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, nil)
				r.back.whenDialed(takes(time.Second))
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				r.dial(ctx)
				time.Sleep(time.Second)
				synctest.Wait()
				time.Sleep(tt.after)
				untilWatched()
				if tt.after == 0 {
					r.back.all()[0].says(tt.bytes, tt.end)
				}
				synctest.Wait()
				r.wantClosed(tt.want)
			})
		})
	}
}

func TestADialThatFailsAfterItsClientLeftFreesTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		r.back.whenDialed(func(ctx context.Context) error {
			pause(ctx, time.Second)
			return syscall.ECONNREFUSED
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		r.dial(ctx)
		r.back.whenDialed(hangs)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := r.slots.events(); !slices.Equal(got, []string{"Orphaned", "DialFailed", "AheadDone(false)"}) {
			t.Errorf("the pool said %v", got)
		}
	})
}

// The end of the dial and of the wait come at the same moment: either may win,
// and the slot has one owner.
func TestADialAndItsWaitEndTogether(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			r := running(t, nil)
			r.back.whenDialed(takes(time.Second))
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if _, err := r.dial(ctx); err != nil && !errors.Is(err, ErrOrphaned) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// What a backend does with a connection that was dialed for a client is its
// answer, and may be as short as "too many connections", and FIN.
func TestAClientGetsTheConnectionThatWasDialedForItAsItIs(t *testing.T) {
	tests := []struct {
		name  string
		bytes bool
		end   error
	}{
		{name: "accepted and closed", end: fin},
		{name: "a farewell", bytes: true, end: fin},
		{name: "accepted and reset", end: syscall.ECONNRESET},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.back.greet = func(c *fakeConn) {
					if len(r.back.conns) > 10 {
						t.Error("it dials again and again")
						r.back.dial = hangs
					}
					c.says(tt.bytes, tt.end)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := r.dial(ctx); err != nil {
					t.Errorf("Dial() = %v", err)
				}
				if n := len(r.back.dialTimes()); n != 1 {
					t.Errorf("%d dials, want 1", n)
				}
			})
		})
	}
}

// Which connection puddle gives is chance: a client that comes for an idle one may
// get what was dialed for another, who then gets the idle one. Each is judged as
// what it is.
func TestConnectionsThatAreSwappedAreJudgedAsWhatTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		old := r.rests(false)
		r.slots.move(free, dialing)
		r.dialed++
		if _, err := r.created(false); err != nil { // a dial has ended, its client is on its way
			t.Fatal(err)
		}
		r.back.all()[1].says(false, fin)
		old.says(false, fin)
		if r.take() != nil {
			t.Error("Take leased the dead connection of another's dial")
		}
		if r.pop(true) != nil {
			t.Error("the dialer leased a dead connection that had lain idle")
		}
		r.empty++
		r.slots.move(dialing, free)
		r.wantClosed(map[string]int64{"backend_closed": 2})
	})
}

func TestTheLifetimeIsDrawnOnceWithinATenth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *setup) { cfg.MaxLifetime, cfg.Max = 100*time.Second, 300 })
		least, most := time.Hour, time.Duration(0)
		for range 300 {
			l := r.mustDial()
			c := l.res.Value()
			end := c.end()
			life := end.Sub(c.born)
			least, most = min(least, life), max(most, life)
			time.Sleep(time.Millisecond)
			r.keep(l, true)
			if l = r.take(); l.res.Value() != c || !c.end().Equal(end) {
				t.Fatal("the end of its life has moved")
			}
		}
		if least < 90*time.Second || least > 92*time.Second || most > 110*time.Second || most < 108*time.Second {
			t.Errorf("lives of %v to %v, want 90 s to 110 s", least, most)
		}
	})
}

func TestIsLocal(t *testing.T) {
	dialError := func(err error) error {
		return &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", err)}
	}
	tests := []struct {
		err  error
		want bool
	}{
		{dialError(syscall.EMFILE), true},
		{dialError(syscall.ENFILE), true},
		{dialError(syscall.ENOBUFS), true},
		{dialError(syscall.ENOMEM), true},
		{dialError(syscall.EADDRNOTAVAIL), true},
		{dialError(syscall.EAGAIN), true}, // a Unix socket's backlog is full
		{dialError(syscall.ENOSPC), true}, // too much is watched by epoll
		{&net.DNSError{Err: "dial udp 10.0.0.1:53: socket: too many open files", Name: "h"}, true}, // keeps no cause
		{&net.DNSError{Err: "no such host", Name: "h", IsNotFound: true}, false},
		{io.EOF, false},
		{errors.New("x"), false},
		{dialError(syscall.ECONNRESET), false},
		{dialError(syscall.ETIMEDOUT), false},
		{dialError(syscall.ECONNREFUSED), false},
		{dialError(syscall.ENETUNREACH), false},
		{dialError(syscall.EHOSTUNREACH), false},
		{dialError(syscall.ENOENT), false},
		{context.DeadlineExceeded, false},
		{nil, false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.err), func(t *testing.T) {
			if got := IsLocal(tt.err); got != tt.want {
				t.Errorf("IsLocal = %v, want %v", got, tt.want)
			}
		})
	}
}
