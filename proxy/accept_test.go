package proxy

import (
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// narrow is a listener to which as many clients come as there are places for, at once.
type narrow struct {
	engine.Listener
	clients int
	resumec chan struct{}
	came    func()
}

func (l *narrow) Serve(h engine.Handler) {
	for range l.clients {
		for !h.Admit() {
			<-l.resumec
		}
		l.came()
	}
}

func (l *narrow) Resume() {
	select {
	case l.resumec <- struct{}{}:
	default:
	}
}

// TestNoWakeUpOfTheListenerIsLost has the only session end, or cease to starve, about
// when the listener asks for the next place: nothing comes after that which would wake
// it. If one Resume were lost it would wait for ever.
func TestNoWakeUpOfTheListenerIsLost(t *testing.T) {
	for most := int64(1); most <= 3; most++ {
		srv := &Server{}
		srv.places.most.Store(most)
		var taken atomic.Int64
		ln := &narrow{clients: 30000, resumec: make(chan struct{}, 1), came: func() {
			if n := taken.Add(1); n > most {
				t.Errorf("%d places are taken, of %d", n, most)
			}
		}}
		srv.listener = ln
		var over atomic.Bool
		var sessions sync.WaitGroup
		sessions.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(most), 1))
			for !over.Load() {
				if taken.Load() < 1+rnd.Int64N(most) {
					runtime.Gosched()
					continue
				}
				starves := rnd.IntN(3) == 0
				if starves {
					srv.starve(1)
				}
				for n := rnd.IntN(100); n > 0; n-- {
					over.Load() // takes a moment
				}
				taken.Add(-1)
				srv.places.taken.Add(-1)
				srv.makeRoom()
				if starves {
					srv.starve(-1)
				}
			}
		})
		served := make(chan bool, 1)
		go func() {
			ln.Serve(&entrance{Server: srv})
			served <- true
		}()
		proxytest.Receive(t, served, "all clients to be accepted")
		over.Store(true)
		sessions.Wait()
	}
}

func TestManyShortClientsPassThroughFewPlaces(t *testing.T) {
	enginetest.Each(t, testManyShortClientsPassThroughFewPlaces)
}

func testManyShortClientsPassThroughFewPlaces(t *testing.T) {
	for most := 1; most <= 3; most++ {
		cfg := config(testBackend(t, 4, echo))
		cfg.MaxClients = most
		f := start(t, cfg)
		var clients sync.WaitGroup
		for worker := range 16 {
			clients.Go(func() {
				for i := range 20 {
					if i%2 == worker%2 {
						f.exchange(t, "ping")
						continue
					}
					c, err := net.Dial("tcp", f.at.String())
					if err != nil {
						t.Error(err)
						return
					}
					c.Close()
				}
			})
		}
		clients.Wait()
		f.stop(t)
		if n := f.places.taken.Load(); n > 1 {
			t.Errorf("%d places are taken at the end, want none but the listener's", n)
		}
	}
}

// While a session starves for a descriptor there is no place, and the listener hears
// when there is one again.
func TestNobodyIsAdmittedWhileSessionsStarve(t *testing.T) {
	srv := &Server{}
	srv.places.most.Store(10)
	ln := &narrow{resumec: make(chan struct{}, 1)}
	srv.listener = ln
	e := &entrance{Server: srv}
	srv.starve(1)
	srv.starve(1)
	if e.Admit() {
		t.Fatal("admitted while two sessions starve")
	}
	srv.starve(-1)
	if len(ln.resumec) != 0 || e.Admit() {
		t.Fatal("admitted while one does")
	}
	srv.starve(-1)
	if len(ln.resumec) != 1 || !e.Admit() {
		t.Error("not admitted when none does any more")
	}
}

func TestAClientThatComesEndsTheGrowthOfThePause(t *testing.T) {
	enginetest.Each(t, testAClientThatComesEndsTheGrowthOfThePause)
}

func testAClientThatComesEndsTheGrowthOfThePause(t *testing.T) {
	f := start(t, config(testBackend(t, 1, echo)))
	e := &entrance{Server: f.Server}
	for range 3 {
		e.Failed(net.ErrClosed)
	}
	client, accepted := proxytest.Pair(t, "tcp")
	c, err := f.eng.Adopt(accepted)
	if err != nil {
		t.Fatal(err)
	}
	if !e.Admit() {
		t.Fatal("no place")
	}
	e.Accepted(c)
	ping(t, client)
	if got := e.Failed(net.ErrClosed); got != 5*time.Millisecond {
		t.Errorf("the pause is %v, want the first one", got)
	}
}

// A place becomes free after the listener has found none, and before it has said so.
func TestPlaceThatIsFreeByNowIsNotRefused(t *testing.T) {
	for name, makesRoom := range map[string]func(srv *Server){
		"a session ends": func(srv *Server) { srv.sessions.Add(1); srv.forget() },
		"one is fed":     func(srv *Server) { srv.places.most.Add(1); srv.starve(-1) },
	} {
		t.Run(name, func(t *testing.T) {
			srv := &Server{listener: &narrow{resumec: make(chan struct{}, 1)}}
			srv.places.most.Store(1)
			if !srv.places.reserve() || srv.places.take() {
				t.Fatal("there is not one place")
			}
			if name == "one is fed" {
				srv.starve(1)
			}
			makesRoom(srv)
			if !srv.places.refuse() {
				t.Error("refused, and nobody will say that there is room")
			}
		})
	}
}
