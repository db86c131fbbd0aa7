package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// backupDispatcher returns a dispatcher over two backends of one slot each, a and b, and
// two backups of one, c and d.
func backupDispatcher(t *testing.T, cfg balance.Config) (*dispatcher, *Server) {
	t.Helper()
	d := newBalancedDispatcher(t, cfg, 4, 10)
	for i := range 4 {
		addTo(t, d, Backend{Max: 1, Weight: 1, Backup: i >= 2})
	}
	return d, &Server{dispatcher: d}
}

func (d *dispatcher) takeDown(indices ...int) {
	for _, i := range indices {
		d.down(d.at(i), errors.New("down"))
	}
}

func TestBackupsServeOnceNoOtherMay(t *testing.T) {
	state := func(s State, indices ...int) func(*testing.T, *dispatcher, *Server) {
		return func(t *testing.T, d *dispatcher, srv *Server) {
			for _, i := range indices {
				must(t, srv.SetState(d.at(i).name, s))
			}
		}
	}
	down := func(indices ...int) func(*testing.T, *dispatcher, *Server) {
		return func(_ *testing.T, d *dispatcher, _ *Server) { d.takeDown(indices...) }
	}
	remove := func(t *testing.T, d *dispatcher, srv *Server) {
		for i := range 2 {
			must(t, srv.change(d.at(i).name, func(d *dispatcher, b *backend) {
				b.removed = true
				d.bal.SetOut(b.index, balance.Removed, true)
			}))
		}
	}
	tests := []struct {
		name    string
		happens func(*testing.T, *dispatcher, *Server)
		want    string
	}{
		{name: "while others are full clients wait for these", happens: state(Ready), want: "- - -"},
		{name: "one that is left and full keeps them", happens: down(0), want: "- - -"},
		{name: "the last one goes down", happens: down(0, 1), want: "c d -"},
		{name: "the last one is drained", happens: state(Drain, 0, 1), want: "c d -"},
		{name: "or maintained", happens: state(Maintain, 1, 0), want: "c d -"},
		{name: "or removed", happens: remove, want: "c d -"},
		{name: "each for a reason of its own", happens: func(t *testing.T, d *dispatcher, srv *Server) {
			down(0)(t, d, srv)
			state(Drain, 1)(t, d, srv)
		}, want: "c d -"},
		{name: "a backup that is down serves nobody", happens: down(2, 0, 1), want: "d - -"},
		{name: "nor does one that is drained", happens: func(t *testing.T, d *dispatcher, srv *Server) {
			state(Drain, 3)(t, d, srv)
			down(0, 1)(t, d, srv)
		}, want: "c - -"},
		{name: "without any left there is no hope", happens: down(2, 3, 0, 1), want: "none none none"},
		{name: "nobody is served while all is paused", happens: func(t *testing.T, d *dispatcher, _ *Server) {
			if _, err := d.pause(); err != nil {
				t.Fatal(err)
			}
			d.takeDown(0, 1)
		}, want: "- - -"},
	}
	for _, strategy := range balance.Strategies {
		for _, tt := range tests {
			t.Run(fmt.Sprint(strategy, " ", tt.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d, srv := backupDispatcher(t, balance.Config{Strategy: strategy})
					fill(t, d)
					waiters := []*place{wait(d, 1), wait(d, 2), wait(d, 3)}
					tt.happens(t, d, srv)
					want := tt.want
					if got := strings.Trim(fmt.Sprint(waiters), "[]"); got == "d c -" && want == "c d -" {
						want = got // any order will do to a strategy that draws, or hashes
					}
					wantPlaces(t, "then", want, waiters...)
					d.close()
				})
			})
		}
	}
}

// A client that each of the others has failed may use the backups, while those who came
// before it, and have yet to try, wait for a slot of the others.
func TestBackupServesOneWhomTheOthersHaveFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := backupDispatcher(t, balance.Config{Strategy: balance.First})
		fill(t, d)
		for range 2 {
			if _, err := d.pick(claim{tried: d.these(0, 1)}); err != nil {
				t.Fatalf("with the others tried there is %v, want a backup", err)
			}
		}
		waiters := []*place{wait(d, 1), wait(d, 2, 0), wait(d, 3, 0, 1), wait(d, 4), wait(d, 5, 0, 1)}
		wantPlaces(t, "with all full", "- - - - -", waiters...)
		d.move(d.at(3), balance.Dialing, balance.Free)
		wantPlaces(t, "a backup is free", "- - d - -", waiters...)
		d.move(d.at(1), balance.Leased, balance.Free)
		wantPlaces(t, "one of the others is", "b - d - -", waiters...)
		d.move(d.at(2), balance.Dialing, balance.Free)
		wantPlaces(t, "the second backup is", "b - d - c", waiters...)
		d.up(d.at(0)) // nothing is free of it
		d.move(d.at(0), balance.Leased, balance.Free)
		wantPlaces(t, "the other of the others is", "b - d a c", waiters...)
		d.close()
	})
}

func TestThoseWhoWaitForBackupsGoToWhatComesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := backupDispatcher(t, balance.Config{Strategy: balance.First})
		d.takeDown(0, 1)
		fill(t, d) // the backups
		waiters := []*place{wait(d, 1), wait(d, 2)}
		d.up(d.at(1))
		wantPlaces(t, "one comes up", "b -", waiters...)
		d.move(d.at(2), balance.Leased, balance.Free)
		wantPlaces(t, "a backup is free, which is out of use again", "b -", waiters...)
		d.move(d.at(1), balance.Dialing, balance.Free)
		wantPlaces(t, "the one that came up is", "b b", waiters...)
		d.close()
	})
}

// Of those that are down and tried all the same, backups come last too.
func TestAllDownTriesBackupsLast(t *testing.T) {
	tests := []struct {
		name string
		down []int
		want string // what clients get that come one after the other, and stay
	}{
		{name: "others that are up first, and all wait for these", want: "a b full"},
		{name: "one of them is enough", down: []int{0}, want: "b full"},
		{name: "backups that are up before others that are down", down: []int{0, 1}, want: "c d full"},
		{name: "one of these is enough too", down: []int{0, 1, 2}, want: "d full"},
		{name: "with nothing up, others that are down before such backups", down: []int{0, 1, 2, 3}, want: "a b full"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, srv := backupDispatcher(t, balance.Config{Strategy: balance.First, TryDown: true})
			d.takeDown(tt.down...)
			wantPicks(t, d, tt.want)
			if len(tt.down) < 4 {
				return
			}
			for i := range 2 { // who is drained is not tried
				must(t, srv.SetState(d.at(i).name, Drain))
			}
			wantPicks(t, d, "c d full")
		})
	}
}

// wantPicks has as many clients come as want has words.
func wantPicks(t *testing.T, d *dispatcher, want string) {
	t.Helper()
	var got []string
	for range strings.Fields(want) {
		got = append(got, answer(d.pick(claim{})))
	}
	if strings.Join(got, " ") != want {
		t.Errorf("clients get %v, want %s", got, want)
	}
}

func TestAddedAgainABackendIsABackupAsGivenNow(t *testing.T) {
	d, srv := backupDispatcher(t, balance.Config{Strategy: balance.First})
	d.move(d.at(0), balance.Free, balance.Leased) // it does not go
	must(t, srv.change(d.at(0).name, func(d *dispatcher, b *backend) {
		b.removed = true
		d.bal.SetOut(b.index, balance.Removed, true)
	}))
	be := d.at(0).Backend
	be.Max, be.Backup = 2, true
	must(t, d.add(&backend{name: be.String(), dispatched: dispatched{Backend: be}}))
	wantPicks(t, d, "b full")
	d.takeDown(1)
	wantPicks(t, d, "a c d full")
}

func TestSessionsGoToABackupAndReturn(t *testing.T) {
	enginetest.Each(t, testSessionsGoToABackupAndReturn)
}

func testSessionsGoToABackupAndReturn(t *testing.T) {
	for _, strategy := range balance.Strategies {
		t.Run(string(strategy), func(t *testing.T) {
			backup := named(t, "b", 8)
			backup.Backup = true
			one, open := dead(t, 8)
			proxytest.ServeOn(t, open(), namer("a"))
			cfg := config(backup, one) // the order does not matter
			cfg.Balance = strategy
			f := start(t, cfg)
			old := f.from(t, "a")
			must(t, f.SetState(one.String(), Drain))
			during := f.from(t, "b")
			must(t, f.SetState(one.String(), Ready))
			defer f.from(t, "a").Close()
			ping(t, old)
			ping(t, during)

			f.dispatcher.takeDown(1)
			f.isDown(t, 1)
			defer f.from(t, "b").Close()
			f.dispatcher.up(f.dispatcher.at(1))
			f.isUp(t, 1)
			defer f.from(t, "a").Close()
			must(t, f.Remove(one.String()))
			defer f.from(t, "b").Close()
		})
	}
}

// With nothing to check a backend, a client is the first to find it gone.
func TestBackupServesTheClientWhoseDialsFail(t *testing.T) {
	enginetest.Each(t, testBackupServesTheClientWhoseDialsFail)
}

func testBackupServesTheClientWhoseDialsFail(t *testing.T) {
	backup := named(t, "b", 4)
	backup.Backup = true
	one, open := dead(t, 4)
	f := start(t, config(one, backup))
	defer f.from(t, "b").Close() // its dial to the other has failed
	f.isDown(t, 0)
	defer f.from(t, "b").Close()
	proxytest.ServeOn(t, open(), namer("a"))
	f.isUp(t, 0)
	defer f.from(t, "a").Close()
}

func TestBackupServesThoseWhoWaitForTheLastBackend(t *testing.T) {
	enginetest.Each(t, testBackupServesThoseWhoWaitForTheLastBackend)
}

func testBackupServesThoseWhoWaitForTheLastBackend(t *testing.T) {
	tests := map[string]func(f *front, name string) error{
		"drained": func(f *front, name string) error { return f.SetState(name, Drain) },
		"removed": func(f *front, name string) error { return f.Remove(name) },
		"down":    func(f *front, _ string) error { f.dispatcher.takeDown(0); return nil },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			backup := named(t, "b", 2)
			backup.Backup = true
			f := start(t, config(named(t, "a", 1), backup))
			old := f.from(t, "a")
			waits := []proxytest.Conn{f.dial(t), f.dial(t)}
			f.waiting(t, 2)
			must(t, end(f, f.cfg.Backends[0].String()))
			for _, c := range waits {
				wantRead(t, c, "b")
				ping(t, c)
			}
			ping(t, old)
		})
	}
}

// backupEvents notes when backups begin to serve, and cease.
type backupEvents struct {
	noEvents
	heard []bool
}

func (e *backupEvents) backupsServe(begun bool) { e.heard = append(e.heard, begun) }

func TestItIsToldOnceThatBackupsServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, srv := backupDispatcher(t, balance.Config{})
		heard := &backupEvents{}
		d.events = heard
		want := func(when string, want ...bool) {
			t.Helper()
			if !slices.Equal(heard.heard, want) {
				t.Errorf("%s: told %v, want %v", when, heard.heard, want)
			}
		}
		d.takeDown(0, 2)
		fill(t, d)
		want("one is left")
		d.takeDown(1)
		want("none is", true)
		d.takeDown(3)
		want("nor a backup", true, false)
		d.up(d.at(2))
		want("a backup is back", true, false, true)
		d.up(d.at(3))
		d.move(d.at(1), balance.Leased, balance.Free)
		want("nothing more", true, false, true)
		d.up(d.at(0))
		want("another is back", true, false, true, false)
		must(t, srv.SetState(d.at(0).name, Drain))
		want("it is drained", true, false, true, false, true)
	})
}

func TestTheLogSaysWhetherBackupsServe(t *testing.T) {
	b := &book{}
	srv := &Server{cfg: Config{Log: zerolog.New(b)}}
	srv.backupsServe(true)
	srv.backupsServe(false)
	for _, line := range []string{"no backend is up but backups: they serve", "backups serve no longer"} {
		if n := len(b.with(line)); n != 1 {
			t.Errorf("said %q %d times, want once", line, n)
		}
	}
}
