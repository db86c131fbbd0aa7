package engine

import (
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"forebay/proxy/proxytest"
)

func TestSizerFollowsTheTraffic(t *testing.T) {
	tests := []struct {
		name  string
		from  int
		reads []int
		times int // the reads, repeated
		want  int
	}{
		{"begins small", minBuffer, nil, 1, 4 << 10},
		{"a full read grows it", minBuffer, []int{4 << 10}, 1, 16 << 10},
		{"full reads grow it to the largest", minBuffer, []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 256 << 10}, 1, 256 << 10},
		{"a read that is not full keeps it", 16 << 10, []int{16<<10 - 1}, 100, 16 << 10},
		{"16 small reads shrink it", 256 << 10, []int{64 << 10}, 16, 64 << 10},
		{"15 do not", 256 << 10, []int{64 << 10}, 15, 256 << 10},
		{"a larger read among them begins again", 256 << 10, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 64<<10 + 1}, 10, 256 << 10},
		{"small reads shrink it to the smallest", 256 << 10, []int{1}, 1000, 4 << 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sizer{size: tt.from}
			for range tt.times {
				for _, n := range tt.reads {
					s.next(n)
				}
			}
			if s.size != tt.want {
				t.Errorf("size = %d, want %d", s.size, tt.want)
			}
			if b := getBuffer(s.size); len(b.data) != tt.want {
				t.Errorf("buffer of %d bytes, want %d", len(b.data), tt.want)
			}
		})
	}
}

// plainConn is a connection without a socket: two pipes, so that each direction
// ends by itself.
type plainConn struct {
	net.Conn // what is read
	w        net.Conn
}

func plainPair() (a, b *plainConn) {
	ar, bw := net.Pipe()
	br, aw := net.Pipe()
	return &plainConn{ar, aw}, &plainConn{br, bw}
}

func (c *plainConn) Write(p []byte) (int, error) { return c.w.Write(p) }
func (c *plainConn) CloseWrite() error           { return c.w.Close() }
func (c *plainConn) Close() error                { c.w.Close(); return c.Conn.Close() }
func (c *plainConn) SetDeadline(t time.Time) error {
	c.w.SetDeadline(t)
	return c.Conn.SetDeadline(t)
}

func (c *plainConn) SetWriteDeadline(t time.Time) error { return c.w.SetWriteDeadline(t) }

// TestNetDrivesOverPlainConnections runs in fake time: it also proves that no time
// limit is early or late.
func TestNetDrivesOverPlainConnections(t *testing.T) {
	bubble := func(t *testing.T, run func(b *bench, adopt func(net.Conn) Conn)) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, func(cfg Config) Engine { return NewNet(cfg) })
			run(b, func(c net.Conn) Conn {
				adopted, err := b.engine.Adopt(c)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { adopted.Close() })
				return adopted
			})
		})
	}
	for name, run := range lineClients() {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench, adopt func(net.Conn) Conn) {
				l := newLiner(b, &linePool{dial: func() Conn {
					bc, backend := plainPair()
					go serveLines(backend, random(900))
					return adopt(bc)
				}})
				client, cc := plainPair()
				d := b.drive(adopt(cc), l, DriveConfig{})
				run(b.TB.(*testing.T), client)
				d.wait()
			})
		})
	}
	for name, c := range waitCases() {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench, adopt func(net.Conn) Conn) {
				client, cc := plainPair()
				bc, backend := plainPair()
				defer client.Close()
				defer backend.Close()
				act := c.act
				c.act = func(client, backend proxytest.Conn) { go act(client, backend) }
				if late := c.run(b, adopt(cc), client, adopt(bc), backend); late != 0 {
					b.Errorf("asked %v after the time", late)
				}
			})
		})
	}
}

// TestNetRelaysPlainConnections runs in fake time: it also proves that no timer
// is early or late.
func TestNetRelaysPlainConnections(t *testing.T) {
	type peers struct {
		client, backend *plainConn
		r               *running
	}
	tests := []struct {
		name string
		cfg  RelayConfig
		run  func(t *testing.T, p peers)
		want End
		took time.Duration
	}{
		{"bytes and FINs pass", RelayConfig{Replay: true}, func(t *testing.T, p peers) {
			up, down := newStream(1), newStream(2)
			sentUp := async(func() error { err := up.send(p.client, 1<<20, random(9000)); p.client.CloseWrite(); return err })
			sentDown := async(func() error { err := down.send(p.backend, 1<<20, random(9000)); p.backend.CloseWrite(); return err })
			gotUp, gotDown := up.receiving(p.backend, 5000), down.receiving(p.client, 700)
			if a, b := <-gotUp, <-gotDown; a != (transfer{n: 1 << 20}) || b != (transfer{n: 1 << 20}) {
				t.Errorf("got %v and %v", a, b)
			}
			if a, b := <-sentUp, <-sentDown; a != nil || b != nil {
				t.Error(a, b)
			}
		}, Finished, 0},
		{"the idle timeout is exact", RelayConfig{IdleTimeout: time.Minute, HalfCloseTimeout: time.Second}, func(*testing.T, peers) {}, IdleTimeout, time.Minute},
		{"a byte restarts the idle timeout", RelayConfig{IdleTimeout: time.Minute}, func(t *testing.T, p peers) {
			time.Sleep(59 * time.Second)
			write(t, p.client, "x")
			expect(t, p.backend, "x")
			time.Sleep(59 * time.Second)
			write(t, p.backend, "x")
			expect(t, p.client, "x")
		}, IdleTimeout, 178 * time.Second},
		{"the half-close timeout is exact", RelayConfig{IdleTimeout: time.Hour, HalfCloseTimeout: time.Minute}, func(t *testing.T, p peers) {
			time.Sleep(30 * time.Second)
			write(t, p.client, "x")
			expect(t, p.backend, "x")
			p.client.CloseWrite()
			expectEOF(t, p.backend, "")
		}, HalfCloseTimeout, 90 * time.Second},
		{"a half-close brings a distant end forward", RelayConfig{HalfCloseTimeout: time.Minute}, func(t *testing.T, p peers) {
			time.Sleep(100 * time.Hour)
			p.client.CloseWrite()
			expectEOF(t, p.backend, "")
			time.Sleep(59 * time.Second)
			write(t, p.backend, "x")
			expect(t, p.client, "x")
		}, HalfCloseTimeout, 100*time.Hour + 119*time.Second},
		{"a FIN begins the half-close timeout however quiet it was", RelayConfig{IdleTimeout: time.Hour, HalfCloseTimeout: time.Minute}, func(t *testing.T, p peers) {
			time.Sleep(59 * time.Minute)
			p.client.CloseWrite()
			expectEOF(t, p.backend, "")
		}, HalfCloseTimeout, 60 * time.Minute},
		{"quiet ends exactly after the last reply", RelayConfig{KeepQuiet: 20 * time.Millisecond, HalfCloseTimeout: time.Hour}, func(t *testing.T, p peers) {
			write(t, p.client, "request")
			expect(t, p.backend, "request")
			p.client.CloseWrite()
			time.Sleep(time.Minute)
			write(t, p.backend, "reply")
			expect(t, p.client, "reply")
			time.Sleep(19 * time.Millisecond)
			write(t, p.backend, "reply")
			expect(t, p.client, "reply")
		}, Quiet, time.Minute + 39*time.Millisecond},
		{"quiet waits for a reply that its client reads slowly", RelayConfig{KeepQuiet: 20 * time.Millisecond, HalfCloseTimeout: time.Hour}, func(t *testing.T, p peers) {
			write(t, p.client, "request")
			expect(t, p.backend, "request")
			p.client.CloseWrite()
			write(t, p.backend, "re")
			expect(t, p.client, "re")
			write(t, p.backend, "ply")
			time.Sleep(time.Second)
			expect(t, p.client, "ply")
		}, Quiet, time.Second + 20*time.Millisecond},
		{"a cut ends both at once", RelayConfig{}, func(t *testing.T, p peers) {
			time.Sleep(time.Second)
			p.r.cut(nil)
		}, Cut, time.Second},
		{"a FIN before any byte is stale", RelayConfig{Replay: true}, func(t *testing.T, p peers) {
			time.Sleep(time.Second)
			p.backend.CloseWrite()
		}, Stale, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := NewNet(Config{})
				b := &bench{t, e}
				client, cc := plainPair()
				bc, backend := plainPair()
				adopt := func(c net.Conn) Conn {
					a, err := e.Adopt(c)
					if err != nil {
						t.Fatal(err)
					}
					return a
				}
				start := time.Now()
				r := b.relay(adopt(cc), adopt(bc), tt.cfg)
				tt.run(t, peers{client, backend, r})
				res := <-r.donec // any other wait would end in fake time
				cc.Close()
				bc.Close()
				expectEnd(t, res, tt.want)
				if took := time.Since(start); took != tt.took {
					t.Errorf("it took %v, want %v", took, tt.took)
				}
				client.Close()
				backend.Close()
				e.Close()
			})
		})
	}
}

// crossing returns a flight of which sent was given to the kernel for a backend
// after the backend's FIN had come, with nobody having looked: as where the two
// crossed on a long way. The backend's program has closed its connection, or
// only its writing half.
func crossing(b *bench, c Conn, peer io.Closer, halfClose func() error, sent ...string) *flight {
	b.Helper()
	if halfClose != nil {
		halfClose()
	} else {
		peer.Close()
	}
	for {
		if _, end := c.Peek(); end != nil {
			break
		}
	}
	f := new(flight)
	f.begin(c.(*netConn))
	r := &relay{backend: c.(*netConn), start: time.Now()}
	d := &direction{relay: r, dst: c.(*netConn), isUp: true}
	d.onMoved = d.moved
	for _, s := range sent {
		f.send(d, []byte(s))
	}
	return f
}

func TestFlightIsJudged(t *testing.T) {
	big := string(newStream(1)[:40<<10])
	tests := []struct {
		name      string
		used      bool
		half      bool
		sent      []string
		serve     func(t *testing.T, backend net.Conn) // after the half-close and the request
		then      string                               // sent after that
		reset     bool                                 // the reader saw a reset, not a FIN
		delivered bool
	}{
		{name: "a closed backend has not read the request", sent: []string{"request"}},
		{name: "a closed backend has not read a request in parts", sent: []string{"re", "quest"}},
		{name: "a reset proves nothing", sent: []string{"request"}, reset: true, delivered: true},
		{name: "more than 64 KiB is not kept", sent: []string{big, big}, delivered: true},
		{name: "a half-closed backend that reads and closes", half: true, sent: []string{"request"}, delivered: true,
			serve: func(t *testing.T, c net.Conn) { expect(t, c, "request"); c.Close() }},
		{name: "a half-closed backend that reads and closes while more comes", half: true, sent: []string{"request"}, then: "more", delivered: true,
			serve: func(t *testing.T, c net.Conn) { expect(t, c, "request"); c.Close() }},
		{name: "a half-closed backend that reads and resets", half: true, sent: []string{"request"}, delivered: true,
			serve: func(t *testing.T, c net.Conn) { expect(t, c, "request"); reset(c) }},
		{name: "a used half-closed backend that reads and closes", used: true, half: true, sent: []string{"request"}, delivered: true,
			serve: func(t *testing.T, c net.Conn) { expect(t, c, "request"); c.Close() }},
		{name: "a used half-closed backend that reads and closes while more comes", used: true, half: true, sent: []string{"request"}, then: "more", delivered: true,
			serve: func(t *testing.T, c net.Conn) { expect(t, c, "request"); c.Close() }},
		{name: "a used half-closed backend that reads and resets", used: true, half: true, sent: []string{"request"}, delivered: true,
			serve: func(t *testing.T, c net.Conn) { expect(t, c, "request"); reset(c) }},
	}
	n := 100
	if testing.Short() {
		n = 5
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := &bench{t, NewNet(Config{})}
			wrong, unacked := 0, 0
			for range n {
				c, peer := b.backend("tcp")
				if tt.used {
					c.Close()
					peer.Close()
					c, peer = b.used("tcp")
				}
				var half func() error
				if tt.half {
					half = peer.CloseWrite
				}
				_, before, _ := c.(*netConn).raw.tcpState()
				f := crossing(b, c, peer, half, tt.sent...)
				if tt.serve != nil {
					tt.serve(t, peer)
				}
				if tt.then != "" {
					r := &relay{backend: c.(*netConn), start: time.Now()}
					d := &direction{relay: r, dst: c.(*netConn), isUp: true}
					d.onMoved = d.moved
					f.send(d, []byte(tt.then))
				}
				end := io.EOF
				if tt.reset {
					end = syscall.ECONNRESET
				}
				if f.undelivered(end) == tt.delivered {
					wrong++
				}
				if _, acked, _ := c.(*netConn).raw.tcpState(); acked == before {
					unacked++
				}
				c.Close()
				peer.Close()
			}
			t.Logf("bytes_acked was unchanged in %d of %d", unacked, n)
			if wrong > 0 {
				t.Errorf("judged wrongly %d times of %d", wrong, n)
			}
		})
	}
}

func TestClientThatResetIsNotServedAgain(t *testing.T) {
	r := &relay{stopped: true, end: Stale, err: io.EOF}
	r.up.isUp, r.up.readErr = true, syscall.ECONNRESET
	r.conclude()
	if r.end != ClientReset || r.err != syscall.ECONNRESET {
		t.Errorf("ended as %q, %v; want %q", r.end, r.err, ClientReset)
	}
}

func TestFlightIsKeptUntilTheBackendsKernelHasIt(t *testing.T) {
	b := newBench(t, func(cfg Config) Engine { return NewNet(cfg) })
	cc, _ := b.client("tcp")
	bc, _ := b.backend("tcp")
	r := newRelay(cc.(*netConn), bc.(*netConn), RelayConfig{Replay: true})
	r.up.deliver([]byte("request"))
	if string(r.flight.buf) != "request" {
		t.Errorf("%q is kept, want the request", r.flight.buf)
	}
	proxytest.Eventually(t, "the acknowledgement", func() bool { return !r.flight.needed() })
	if r.flight.buf != nil {
		t.Error("the request is still kept")
	}
}

// A byte of the backend's that comes while a write to it waits is no answer to the
// rest of that write.
func TestByteDuringAWriteThatWaitsIsNoAnswer(t *testing.T) {
	b := newBench(t, func(cfg Config) Engine { return NewNet(cfg) })
	cc, client := b.client("tcp")
	bc, backend := stalled(b)
	r := b.relay(cc, bc, RelayConfig{KeepQuiet: 20 * time.Millisecond, HalfCloseTimeout: time.Second})
	total, waits := 0, 0
	for chunk := make([]byte, 60<<10); waits < 10; total += len(chunk) {
		if _, err := client.Write(chunk); err != nil {
			t.Fatal(err)
		}
		for waits = 0; waits < 10; waits++ { // writing for 100 ms: it waits
			pause(10 * time.Millisecond)
			if !bc.(*netConn).writing.Load() {
				break
			}
		}
	}
	write(t, backend, "p")
	expect(t, client, "p")
	if _, err := io.CopyN(io.Discard, backend, int64(total)); err != nil {
		t.Fatal(err)
	}
	client.CloseWrite()
	expectEnd(t, r.close(), HalfCloseTimeout) // the reply is owed
}

// poor is a listener that can accept every third time.
type poor struct {
	net.Listener
	tries int
}

func (p *poor) Accept() (net.Conn, error) {
	if p.tries++; p.tries%3 > 0 {
		return nil, syscall.EMFILE
	}
	return p.Listener.Accept()
}

// A place serves until a client has come for it, however often accepting fails.
func TestNoPlaceIsLostToAFailure(t *testing.T) {
	b := newBench(t, func(cfg Config) Engine { return NewNet(cfg) })
	const clients = 5
	p := b.placed("tcp", 0)
	p.Listener.(*netListener).Listener = &poor{Listener: p.Listener.(*netListener).Listener}
	p.asked(t, 1)
	p.places.Add(clients)
	p.Resume()
	for range clients {
		proxytest.Dial(t, p.Addr())
		proxytest.Receive(t, p.clients, "a client").Close()
	}
}
