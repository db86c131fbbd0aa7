package proxy

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

func TestRepeatedFaultIsSaidOnceAndThenSummed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r repeated
		var said []int
		for range 25 { // one a second
			r.say(func(more int) { said = append(said, more) })
			time.Sleep(time.Second)
		}
		if got, want := fmt.Sprint(said), "[0 9 9]"; got != want {
			t.Errorf("said with %v unsaid before, want %v", got, want)
		}
	})
}

func TestOutageIsSaidOnceAndEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		srv, a := &Server{cfg: Config{Log: zerolog.New(b)}}, &backend{name: "a"}
		down := func() { srv.backendDown(a, errors.New("refused")) }
		want := func(when string, downs, ups int) {
			t.Helper()
			d, u := len(b.with("backend is down")), len(b.with("backend is up again"))
			if d != downs || u != ups {
				t.Errorf("%s: said down %d times and up %d, want %d and %d", when, d, u, downs, ups)
			}
		}
		srv.backendUp(a)
		want("up, and was never down", 0, 0)
		for range 5 {
			down()
			time.Sleep(time.Second)
		}
		want("five failed dials", 1, 0)
		srv.backendUp(a)
		want("up", 1, 1)
		up := b.with("backend is up again")[0]
		if up["failed_dials"] != 5.0 || up["down_ms"] != 5000.0 || up["backend"] != "a" {
			t.Errorf("the line of its end is %v, want 5 failed dials in 5000 ms of a", up)
		}
		srv.backendUp(a)
		want("up twice", 1, 1)
		down()
		srv.backendUp(a)
		want("down again a moment later", 1, 1)
		time.Sleep(sayAgain)
		down()
		want("down again much later", 2, 1)
		if last := b.with("backend is down")[1]; last["repeated"] != 1.0 {
			t.Errorf("the line says %v outages went unsaid, want 1", last["repeated"])
		}
		srv.backendUp(a)
		want("up at last", 2, 2)
		time.Sleep(time.Second)
		down()
		want("down once more a moment later", 2, 2)
		time.Sleep(sayAgain)
		srv.backendStillDown(a, errors.New("refused")) // a failed dial of the same outage
		want("and still down when a line is due", 3, 2)
		srv.backendUp(a)
		time.Sleep(sayAgain)
		srv.backendStillDown(a, errors.New("refused")) // it comes late
		want("up again", 3, 3)
	})
}

func TestEachChangeIsALineWhereBackendsAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		srv, a := &Server{cfg: Config{Log: zerolog.New(b)}}, &backend{name: "a"}
		srv.cfg.Health.Interval = time.Second
		for range 3 {
			srv.backendDown(a, errors.New("refused"))
			srv.backendStillDown(a, errors.New("refused"))
			srv.backendUp(a)
		}
		downs, ups := len(b.with("backend is down")), len(b.with("backend is up again"))
		if downs != 3 || ups != 3 {
			t.Errorf("three outages were said down %d times and up %d, want 3 and 3", downs, ups)
		}
	})
}
