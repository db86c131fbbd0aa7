package engine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

// lineServer is a backend that answers each line.
func lineServer(b *bench, network string, chunk func() int) *linePool {
	addr := proxytest.Serve(b, network, func(c proxytest.Conn) { serveLines(c, chunk) })
	return &linePool{dial: func() Conn { return b.adopt(addr) }}
}

func serveLines(c net.Conn, chunk func() int) {
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		reply := stream("re: " + line)
		if reply.send(c, len(reply), chunk) != nil {
			return
		}
	}
}

// lineClients are clients of a line server that end well.
func lineClients() map[string]func(t *testing.T, client proxytest.Conn) {
	const lines = 50
	requests, replies := "", ""
	for i := range lines {
		line := fmt.Sprintf("request %d %s\n", i, strings.Repeat("x", i*i*i%5000))
		requests += line
		replies += "re: " + line
	}
	return map[string]func(t *testing.T, client proxytest.Conn){
		"ping-pong": func(t *testing.T, client proxytest.Conn) {
			r := bufio.NewReader(client)
			for line := range strings.Lines(requests) {
				write(t, client, line)
				expect(t, r, "re: "+line)
			}
			client.CloseWrite()
			expectEOF(t, r, "")
		},
		"pipelined": func(t *testing.T, client proxytest.Conn) {
			sent := async(func() error { _, err := io.WriteString(client, requests); client.CloseWrite(); return err })
			expectEOF(t, client, replies)
			if err := <-sent; err != nil {
				t.Error(err)
			}
		},
		"in chunks": func(t *testing.T, client proxytest.Conn) {
			sent := stream(requests).sending(client, len(requests), random(700))
			expectEOF(t, client, replies)
			if err := <-sent; err != nil {
				t.Error(err)
			}
		},
		"bytewise": func(t *testing.T, client proxytest.Conn) {
			for i := range 5 {
				for _, c := range fmt.Sprintf("request %d\n", i) {
					write(t, client, string(c))
				}
				expect(t, client, fmt.Sprintf("re: request %d\n", i))
			}
			client.CloseWrite()
			expectEOF(t, client, "")
		},
	}
}

func testDrive(t *testing.T, newEngine func(Config) Engine) {
	clients := lineClients()
	for _, nets := range networks {
		for _, mode := range []string{"a lease for each", "batches", "streams"} {
			for name, run := range clients {
				t.Run(fmt.Sprintf("%s/%s/%s", nets, mode, name), func(t *testing.T) {
					b := newBench(t, newEngine)
					cc, client := b.client(nets[0])
					chunk := fixed(1 << 20)
					if name != "ping-pong" {
						chunk = random(900)
					}
					l := newLiner(t, lineServer(b, nets[1], chunk))
					l.batch, l.stream = mode == "batches", mode == "streams"
					d := b.drive(cc, l, DriveConfig{})
					run(t, client)
					d.wait()
					if l.leases == 0 || len(l.pool.idle) != 1 {
						t.Errorf("%d leases, and %d idle connections, want 1", l.leases, len(l.pool.idle))
					}
				})
			}
		}
	}
	t.Run("streams", func(t *testing.T) { testDriveStreams(t, newEngine) })
	t.Run("memory", func(t *testing.T) { testDriveMemory(t, newEngine) })
	t.Run("waits", func(t *testing.T) { testDriveWaits(t, newEngine) })
	t.Run("ends", func(t *testing.T) { testDriveEnds(t, newEngine) })
	t.Run("leases", func(t *testing.T) { testDriveLeases(t, newEngine) })
	t.Run("undelivered", func(t *testing.T) { testUndelivered(t, newEngine) })
}

// newLine is a line of n bytes.
func newLine(seed byte, n int) stream {
	s := bytes.ReplaceAll(newStream(seed), []byte("\n"), []byte("x"))
	line := bytes.Repeat(s, n/len(s)+1)[:n]
	line[n-1] = '\n'
	return line
}

func testDriveStreams(t *testing.T, newEngine func(Config) Engine) {
	const size = 64 << 20
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network+"/a request and a reply of 64 MiB in bounded memory", func(t *testing.T) {
			b := newBench(t, newEngine)
			cc, client := b.client(network)
			bc, backend := b.backend(network)
			request, reply := newLine(1, size), newLine(2, size)
			l := newLiner(t, &linePool{dial: func() Conn { return bc }})
			l.stream = true
			heap := heapSize()
			d := b.drive(cc, l, DriveConfig{})
			sent := async(func() error { return request.send(client, size, random(1<<20)) })
			if n, err := request.receive(io.LimitReader(backend, size), 64<<10); n != size || err != nil {
				t.Fatal(n, err)
			}
			answered := async(func() error { return reply.send(backend, size, random(1<<20)) })
			if n, err := reply.receive(io.LimitReader(client, size), 64<<10); n != size || err != nil {
				t.Fatal(n, err)
			}
			if err := errors.Join(<-sent, <-answered); err != nil {
				t.Error(err)
			}
			if grown := int64(heapSize()) - int64(heap); grown > 4<<20 {
				t.Errorf("the heap grew by %d bytes", grown)
			}
			client.CloseWrite()
			expectEOF(t, client, "")
			d.wait()
			if len(l.pool.idle) != 1 {
				t.Error("the connection cannot be used on")
			}
		})
	}

	t.Run("an early reply is seen while the request is written", func(t *testing.T) {
		for _, ends := range []bool{false, true} {
			b := newBench(t, newEngine)
			cc, client := b.client("tcp")
			bc, backend := b.backend("tcp")
			next, _ := b.backend("tcp") // which gets what comes behind the failure
			conns := []Conn{bc, next}
			l := newLiner(t, &linePool{dial: func() (c Conn) { c, conns = conns[0], conns[1:]; return c }})
			l.stream = true
			d := b.drive(cc, l, DriveConfig{})
			request := newLine(1, size)
			go request.send(client, size, fixed(100_000)) // it is not all read
			expect(t, backend, string(request[:1000]))
			write(t, backend, "early")
			expect(t, client, "early")
			if ends {
				write(t, backend, " reply")
				expect(t, client, " reply")
				reset(backend)
				expect(t, client, "failed\n")
			}
			d.cut()
			d.wait()
		}
	})
}

func testDriveMemory(t *testing.T, newEngine func(Config) Engine) {
	const sessions, size = 100, 200_000
	b := newBench(t, newEngine)
	front, pool := b.listen("tcp"), lineServer(b, "tcp", fixed(size))
	line := newLine(1, size)
	reply := append(stream("re: "), line...)
	heap := heapSize()
	for range sessions {
		cc, client := b.clientOf(front)
		l := newLiner(t, pool)
		l.tidy = true
		b.drive(cc, l, DriveConfig{})
		sent := async(func() error { _, err := client.Write(line); return err })
		n, err := reply.receive(io.LimitReader(client, int64(len(reply))), size)
		if err = errors.Join(err, <-sent); n != len(reply) || err != nil {
			t.Fatal(n, err)
		}
	}
	if grown := int64(heapSize()) - int64(heap); grown > sessions*(8<<10) {
		t.Errorf("%d quiet sessions hold %d bytes each", sessions, grown/sessions)
	}
}

// wantsOf are the wants of a test, by their bits.
var wantsOf = []want{toBackend, fromBackend, toClient, fromClient}

var wantNames = map[want]string{toBackend: "to backend", fromBackend: "from backend", toClient: "to client", fromClient: "from client"}

// waiter is a puppet that fills what it is to wait for in writing, and then waits
// once.
type waiter struct {
	*puppet
	wants       map[want]bool
	clientFirst bool
	limit       time.Duration

	waiting chan struct{} // closed when it waits
	until   time.Time
	late    time.Duration // how late it was asked after until
	filled  map[want]bool
}

func newWaiter(t testing.TB, bc Conn, wants map[want]bool, limit time.Duration) *waiter {
	w := &waiter{puppet: &puppet{TB: t}, wants: wants, limit: limit, waiting: make(chan struct{}), filled: map[want]bool{}}
	w.lease = func() Conn { return bc }
	w.play = w.next
	return w
}

var block = make([]byte, most)

func (w *waiter) next(p *puppet, now time.Time) Step {
	switch {
	case p.leases == 0:
		return Step{Op: OpLease}
	case w.wants[toBackend] && !w.full(toBackend, &p.wroteUp, now):
		return Step{ToBackend: block, Until: w.until}
	case w.wants[toClient] && !w.full(toClient, &p.wroteDown, now):
		return Step{ToClient: block, Until: w.until}
	}
	select {
	case <-w.waiting:
		w.late = now.Sub(w.until)
		return Step{Op: OpDone}
	default:
		close(w.waiting)
		return w.wait(now)
	}
}

// full reports whether nothing has been written for a while.
func (w *waiter) full(of want, wrote *int, now time.Time) bool {
	if !w.filled[of] && *wrote == 0 && !w.until.IsZero() && !now.Before(w.until) {
		w.filled[of], w.until = true, time.Time{}
	}
	if !w.filled[of] {
		*wrote, w.until = 0, now.Add(20*time.Millisecond)
	}
	return w.filled[of]
}

func (w *waiter) wait(now time.Time) Step {
	s := Step{ClientFirst: w.clientFirst}
	if w.limit > 0 {
		w.until = now.Add(w.limit)
		s.Until = w.until
	}
	if w.wants[toBackend] {
		s.ToBackend = block
	}
	if w.wants[toClient] {
		s.ToClient = block
	}
	if w.wants[fromBackend] {
		s.FromBackend = 10
	}
	if w.wants[fromClient] {
		s.FromClient = 10
	}
	return s
}

// happened tells what happened since the wait began.
func (w *waiter) happened() string {
	var s []string
	for what, yes := range map[string]bool{
		"to backend": w.wroteUp > 0, "to client": w.wroteDown > 0,
		"from backend": len(w.down) > 0, "from client": len(w.up) > 0,
		"client ended": len(w.clientEnds) > 0, "backend ended": w.backendEnd != nil, "cut": w.cuts > 0,
	} {
		if yes {
			s = append(s, what)
		}
	}
	return strings.Join(s, ", ")
}

// drain reads all that comes.
func drain(c io.Reader) { go io.Copy(io.Discard, c) }

// waitCase is one wait of a drive, and what ends it.
type waitCase struct {
	wants       map[want]bool
	clientFirst bool
	late        bool // it has outlasted its grace
	waitEvent
}

type waitEvent struct {
	name string
	of   want // that it is about; nothing: it can always happen
	act  func(client, backend proxytest.Conn)
	want string
}

// waitCases are all of them, by name.
func waitCases() map[string]waitCase {
	events := []waitEvent{
		{"bytes from the client", fromClient, func(c, _ proxytest.Conn) { c.Write([]byte("x")) }, "from client"},
		{"bytes from the backend", fromBackend, func(_, b proxytest.Conn) { b.Write([]byte("x")) }, "from backend"},
		{"a client that reads", toClient, func(c, _ proxytest.Conn) { drain(c) }, "to client"},
		{"a backend that reads", toBackend, func(_, b proxytest.Conn) { drain(b) }, "to backend"},
		{"a FIN of the client", fromClient, func(c, _ proxytest.Conn) { c.CloseWrite() }, "client ended"},
		{"a FIN of the backend", fromBackend, func(_, b proxytest.Conn) { b.CloseWrite() }, "backend ended"},
		{"the time", nothing, nil, ""},
		{"a cut", nothing, nil, "cut"},
		{"a cut of its own", nothing, nil, "cut"},
		{"a wake", nothing, nil, ""},
	}
	cases := map[string]waitCase{}
	for mask := range 1 << len(wantsOf) {
		wants, name := map[want]bool{}, ""
		for i, w := range wantsOf {
			if mask>>i&1 != 0 {
				wants[w] = true
				name += wantNames[w] + ","
			}
		}
		for _, e := range events {
			if e.of != nothing && !wants[e.of] {
				continue
			}
			for _, late := range []bool{false, true} {
				for _, first := range []bool{false, true} {
					if first && !(wants[fromClient] && wants[fromBackend]) {
						continue
					}
					cases[fmt.Sprintf("%s/%s/late %v/client first %v", name, e.name, late, first)] = waitCase{wants, first, late, e}
				}
			}
		}
	}
	return cases
}

// run returns how late the drive was asked again where the time had come.
func (c waitCase) run(b *bench, cc Conn, client proxytest.Conn, bc Conn, backend proxytest.Conn) (late time.Duration) {
	limit := time.Duration(0)
	if c.name == "the time" {
		limit = grace / 2
		if c.late {
			limit = 30 * time.Millisecond
		}
	}
	w := newWaiter(b, bc, c.wants, limit)
	w.clientFirst = c.clientFirst
	wake, doWake := context.WithCancel(b.Context())
	defer doWake()
	d := b.drive(cc, w, DriveConfig{Wake: wake})
	proxytest.Receive(b, w.waiting, "the wait")
	if c.late {
		pause(5 * grace)
	}
	switch c.name {
	case "the time":
	case "a cut":
		d.cut()
	case "a cut of its own":
		cc.Cut()
	case "a wake":
		doWake()
	default:
		c.act(client, backend)
	}
	d.wait()
	if got := w.happened(); got != c.want {
		b.Errorf("%q happened, want %q", got, c.want)
	}
	for _, c := range []Conn{cc, bc} {
		if c, ok := c.(*netConn); ok && c.hasDeadline() {
			b.Error("a deadline is left")
		}
	}
	if limit == 0 {
		return 0
	}
	return w.late
}

func testDriveWaits(t *testing.T, newEngine func(Config) Engine) {
	for name, c := range waitCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, newEngine)
			cc, client := b.client("unix")
			bc, backend := b.backend("unix")
			if late := c.run(b, cc, client, bc, backend); late < 0 || late > 200*time.Millisecond {
				t.Errorf("asked %v after the time", late)
			}
		})
	}

	t.Run("a time limit that moves on is kept", func(t *testing.T) {
		b := newBench(t, newEngine)
		cc, client := b.client("tcp")
		const limit = 100 * time.Millisecond
		var last time.Time
		p := &puppet{TB: t}
		p.play = func(p *puppet, now time.Time) Step {
			if len(p.up) > 0 || last.IsZero() {
				p.up, last = nil, now
			}
			if now.Sub(last) >= limit {
				return Step{Op: OpDone}
			}
			return Step{FromClient: 10, Until: last.Add(limit)}
		}
		d := b.drive(cc, p, DriveConfig{})
		begin := time.Now()
		for range 10 {
			pause(limit / 4)
			write(t, client, "x")
		}
		d.wait()
		if took := time.Since(begin); took < 10*limit/4+limit {
			t.Errorf("ended after %v", took)
		}
		if p.asked > 30 {
			t.Errorf("asked %d times", p.asked)
		}
	})

	t.Run("two cuts are told once", func(t *testing.T) {
		b := newBench(t, newEngine)
		cc, _ := b.client("tcp")
		began, told := make(chan bool, 10), make(chan bool, 1)
		var since time.Time
		p := &puppet{TB: t} // which fails where it is told twice
		p.play = func(p *puppet, now time.Time) Step {
			switch {
			case p.cuts == 0:
				began <- true
				return Step{}
			case since.IsZero():
				since = now
				told <- true
			case now.Sub(since) > 50*time.Millisecond:
				return Step{Op: OpDone}
			}
			return Step{Until: since.Add(51 * time.Millisecond)}
		}
		d := b.drive(cc, p, DriveConfig{})
		proxytest.Receive(t, began, "the drive to begin")
		cc.Cut()
		proxytest.Receive(t, told, "the cut")
		d.cut()
		cc.Cut()
		d.wait()
		cc.Cut()
	})

	t.Run("a wait does not spin", func(t *testing.T) {
		b := newBench(t, newEngine)
		cc, client := b.client("tcp")
		bc, _ := b.backend("tcp")
		w := newWaiter(t, bc, map[want]bool{fromClient: true, fromBackend: true}, 0)
		d := b.drive(cc, w, DriveConfig{})
		proxytest.Receive(t, w.waiting, "the wait")
		pause(50 * time.Millisecond)
		write(t, client, "x")
		d.wait()
		if w.asked > 4 {
			t.Errorf("asked %d times", w.asked)
		}
	})

	t.Run("a slow client gets its bytes while the backend is silent, and the other way round", func(t *testing.T) {
		for _, network := range []string{"tcp", "unix"} {
			b := newBench(t, newEngine)
			cc, client := b.client(network)
			bc, backend := b.backend(network)
			s := newStream(1)
			const size = 20 << 20
			p := &puppet{TB: t, lease: func() Conn { return bc }}
			read := make(chan struct{}) // closed when all 50 have been
			p.play = func(p *puppet, now time.Time) Step {
				if len(p.down) == 50 {
					select {
					case <-read:
					default:
						close(read)
					}
				}
				switch {
				case p.leases == 0:
					return Step{Op: OpLease}
				case p.wroteDown == size && len(p.down) == 100:
					return Step{Op: OpDone}
				}
				at := p.wroteDown % len(s)
				return Step{FromBackend: 100, ToClient: s[at:min(len(s), at+size-p.wroteDown)]}
			}
			d := b.drive(cc, p, DriveConfig{})
			proxytest.Eventually(t, "the client's buffer to be full", func() bool {
				n := inQueue(t, client)
				pause(20 * time.Millisecond)
				return n > 0 && inQueue(t, client) == n
			})
			for range 50 { // nobody reads the client's
				write(t, backend, "x")
			}
			proxytest.Receive(t, read, "the backend's bytes to be read")
			if n, err := s.receive(io.LimitReader(client, size), 10000); n != size || err != nil {
				t.Fatal(n, err)
			}
			write(t, backend, strings.Repeat("x", 50))
			d.wait()
		}
	})
}

// wants is a puppet that wants the same until over.
func (b *bench) wants(bc Conn, s Step, over func(p *puppet) bool) *puppet {
	p := &puppet{TB: b.TB, lease: func() Conn { return bc }}
	p.play = func(p *puppet, now time.Time) Step {
		switch {
		case bc != nil && p.leases == 0:
			return Step{Op: OpLease}
		case over(p) || p.cuts > 0:
			return Step{Op: OpDone}
		}
		s := s
		s.ToBackend = s.ToBackend[min(p.wroteUp, len(s.ToBackend)):]
		s.ToClient = s.ToClient[min(p.wroteDown, len(s.ToClient)):]
		return s
	}
	return p
}

func testDriveEnds(t *testing.T, newEngine func(Config) Engine) {
	clientGone := func(p *puppet) bool { n := len(p.clientEnds); return n > 0 && p.clientEnds[n-1] != io.EOF }
	backendGone := func(p *puppet) bool { return p.backendEnd != nil }

	t.Run("a reset of the client is seen while the backend is waited for", func(t *testing.T) {
		b := newBench(t, newEngine)
		cc, client := b.client("tcp")
		bc, _ := b.backend("tcp")
		p := b.wants(bc, Step{FromBackend: 10, FromClient: 10}, clientGone)
		d := b.drive(cc, p, DriveConfig{})
		reset(client)
		d.wait()
		if !errors.Is(p.clientEnds[0], syscall.ECONNRESET) {
			t.Errorf("the client ended with %v", p.clientEnds)
		}
	})

	t.Run("a client that has finished is written to, and its failure seen then", func(t *testing.T) {
		b := newBench(t, newEngine)
		cc, client := b.client("tcp")
		finished := make(chan struct{})
		p := b.wants(nil, Step{FromClient: 10, ToClient: make([]byte, 64<<20)}, func(p *puppet) bool {
			if len(p.clientEnds) == 1 && p.clientEnds[0] == io.EOF && len(p.up) == 0 {
				p.up = []byte("seen")
				close(finished)
			}
			return clientGone(p)
		})
		d := b.drive(cc, p, DriveConfig{})
		client.CloseWrite()
		proxytest.Receive(t, finished, "the FIN to be seen")
		expect(t, client, string(make([]byte, 100_000)))
		client.Close()
		d.wait()
		if len(p.clientEnds) != 2 || p.clientEnds[0] != io.EOF {
			t.Errorf("the client ended with %v", p.clientEnds)
		}
	})

	t.Run("a finished client is read to its end", func(t *testing.T) {
		for _, network := range []string{"tcp", "unix"} {
			b := newBench(t, newEngine)
			cc, client := b.client(network)
			said := false
			p := &puppet{TB: t}
			p.play = func(p *puppet, now time.Time) Step {
				switch {
				case !said && p.wroteDown == 3:
					said = true
					return Step{Op: OpFinishClient}
				case !said:
					return Step{ToClient: []byte("bye")[p.wroteDown:]}
				case len(p.clientEnds) > 0:
					return Step{Op: OpDone}
				}
				return Step{FromClient: 100}
			}
			d := b.drive(cc, p, DriveConfig{})
			expectEOF(t, client, "bye")
			write(t, client, "still here")
			client.CloseWrite()
			d.wait()
			if string(p.up) != "still here" || p.clientEnds[0] != io.EOF {
				t.Errorf("read %q, then %v", p.up, p.clientEnds)
			}
		}
	})

	backendEnds := []struct {
		name string
		act  func(t *testing.T, backend proxytest.Conn)
		step Step
		down string
		want error
	}{
		{"a FIN while it is waited for", func(t *testing.T, backend proxytest.Conn) { backend.Close() }, Step{FromBackend: 10}, "", io.EOF},
		{"bytes and a FIN", func(t *testing.T, backend proxytest.Conn) { write(t, backend, "reply"); backend.Close() }, Step{FromBackend: 2}, "reply", io.EOF},
		{"a reset while it is waited for", func(t *testing.T, backend proxytest.Conn) { reset(backend) }, Step{FromBackend: 10}, "", syscall.ECONNRESET},
		{"a reset while it is waited for, the client too", func(t *testing.T, backend proxytest.Conn) { reset(backend) }, Step{FromBackend: 10, FromClient: 10}, "", syscall.ECONNRESET},
		{"a reset while it is written to", func(t *testing.T, backend proxytest.Conn) { reset(backend) }, Step{ToBackend: make([]byte, 64<<20)}, "", syscall.ECONNRESET},
		{"a reset while it is written to and read", func(t *testing.T, backend proxytest.Conn) { reset(backend) }, Step{ToBackend: make([]byte, 64<<20), FromBackend: 10}, "", syscall.ECONNRESET},
		{"a reply and a reset while it is written to", func(t *testing.T, backend proxytest.Conn) {
			write(t, backend, "reply")
			reset(backend)
		}, Step{ToBackend: make([]byte, 64<<20), FromBackend: 2, FromClient: 1}, "reply", syscall.ECONNRESET},
	}
	for _, when := range []string{"before", "soon", "late"} {
		for _, tt := range backendEnds {
			t.Run(when+"/"+tt.name, func(t *testing.T) {
				b := newBench(t, newEngine)
				cc, _ := b.client("tcp")
				bc, backend := b.backend("tcp")
				p := b.wants(bc, tt.step, backendGone)
				if when == "before" {
					tt.act(t, backend)
					proxytest.Eventually(t, "the end", func() bool { return peeked(bc).end != nil })
				}
				d := b.drive(cc, p, DriveConfig{})
				if when == "late" {
					pause(5 * grace)
				}
				if when != "before" {
					tt.act(t, backend)
				}
				d.wait()
				if string(p.down) != tt.down || !errors.Is(p.backendEnd, tt.want) {
					t.Errorf("read %q, then %v; want %q, %v", p.down, p.backendEnd, tt.down, tt.want)
				}
				if p.undelivered != (p.wroteUp == 0) {
					t.Errorf("undelivered %v, %d bytes written", p.undelivered, p.wroteUp)
				}
			})
		}
	}

	t.Run("what is wanted of sides that have ended is left out", func(t *testing.T) {
		for _, end := range []func(net.Conn){reset, func(c net.Conn) { c.Close() }} {
			b := newBench(t, newEngine)
			cc, client := b.client("tcp")
			bc, backend := b.backend("tcp")
			var until time.Time
			p := &puppet{TB: t, lease: func() Conn { return bc }}
			p.play = func(p *puppet, now time.Time) Step {
				s := Step{ToClient: block, FromClient: 10, ToBackend: block, FromBackend: 10}
				switch {
				case p.leases == 0:
					return Step{Op: OpLease}
				case p.backendEnd == nil || !clientGone(p):
					return s
				case until.IsZero():
					until = now.Add(50 * time.Millisecond)
					p.asked = 0
				case !now.Before(until):
					return Step{Op: OpDone}
				}
				s.Until = until
				return s
			}
			d := b.drive(cc, p, DriveConfig{})
			end(client)
			end(backend)
			d.wait()
			if p.asked > 2 {
				t.Errorf("asked %d times", p.asked)
			}
		}
	})

	t.Run("a backend that fails is drained as the client makes room", func(t *testing.T) {
		b := newBench(t, newEngine)
		cc, client := b.client("tcp")
		bc, backend := b.backend("tcp")
		write(t, backend, "a reply")
		reset(backend)
		proxytest.Eventually(t, "the reset", func() bool { return peeked(bc).end != nil })
		p := &puppet{TB: t, lease: func() Conn { return bc }}
		p.play = func(p *puppet, now time.Time) Step {
			switch out := p.down[p.wroteDown:]; {
			case p.leases == 0:
				return Step{Op: OpLease}
			case len(out) > 0: // there is no room
				return Step{ToBackend: []byte("request"), ToClient: out, FromClient: 10}
			case p.backendEnd != nil:
				return Step{Op: OpDone}
			}
			return Step{ToBackend: []byte("request"), FromBackend: 1, FromClient: 10}
		}
		d := b.drive(cc, p, DriveConfig{})
		expect(t, client, "a reply")
		d.wait()
		if !errors.Is(p.backendEnd, syscall.ECONNRESET) || !p.undelivered {
			t.Errorf("ended with %v, %v", p.backendEnd, p.undelivered)
		}
	})
}

func testDriveLeases(t *testing.T, newEngine func(Config) Engine) {
	// request is a puppet that reads a request with a time limit, leases, and is
	// done, its lease kept.
	request := func(t *testing.T, lease func() Conn) *puppet {
		p := &puppet{TB: t, lease: lease}
		p.play = func(p *puppet, now time.Time) Step {
			switch {
			case len(p.up) == 0 && len(p.clientEnds) == 0 && p.cuts == 0:
				return Step{FromClient: 100, Until: now.Add(100 * time.Millisecond)}
			case p.leases == 0:
				return Step{Op: OpLease}
			}
			return Step{Op: OpDone}
		}
		return p
	}

	t.Run("a client can be watched, whatever time limits and interrupts there are", func(t *testing.T) {
		b := newBench(t, newEngine)
		cc, client := b.client("tcp")
		leasing, woken, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
		p := request(t, func() Conn {
			close(leasing)
			<-woken
			stop := cc.Watch(func(_ bool, end error) bool {
				if end != nil {
					close(gone)
				}
				return end == nil
			})
			defer stop()
			pause(150 * time.Millisecond) // beyond the limit
			client.Close()
			proxytest.Receive(t, gone, "the client to be seen leaving")
			return nil
		})
		wake, doWake := context.WithCancel(t.Context())
		d := b.drive(cc, p, DriveConfig{Wake: wake})
		write(t, client, "request")
		proxytest.Receive(t, leasing, "the lease")
		doWake()
		close(woken)
		d.wait()
	})

	t.Run("a client that has sent more is seen leaving", func(t *testing.T) {
		for _, leaves := range []func(proxytest.Conn){func(c proxytest.Conn) { c.Close() }, func(c proxytest.Conn) { reset(c) }} {
			b := newBench(t, newEngine)
			cc, client := b.client("tcp")
			seenc := make(chan seen, 10)
			p := request(t, func() Conn {
				defer cc.Watch(func(bytes bool, end error) bool {
					seenc <- seen{bytes, end}
					return end == nil
				})()
				for _, more := range []string{"more", " and more"} {
					write(t, client, more)
					awaitAcked(t, client)
				}
				for !proxytest.Receive(t, seenc, "the bytes").bytes {
				}
				leaves(client)
				for proxytest.Receive(t, seenc, "the client to be seen leaving").end == nil {
				}
				return nil
			})
			d := b.drive(cc, p, DriveConfig{})
			write(t, client, "request")
			d.wait()
		}
	})

	t.Run("a cut during the lease is not lost", func(t *testing.T) {
		for _, watched := range []bool{false, true} {
			b := newBench(t, newEngine)
			cc, client := b.client("tcp")
			bc, backend := b.backend("tcp")
			leasing, cut := make(chan struct{}), make(chan struct{})
			p := &puppet{TB: t, lease: func() Conn {
				if watched {
					defer cc.Watch(func(bool, error) bool { return true })()
				}
				close(leasing)
				<-cut
				pause(10 * time.Millisecond) // for the interrupt, which nobody can see
				return bc
			}}
			p.play = func(p *puppet, now time.Time) Step {
				switch {
				case p.leases == 0:
					return Step{Op: OpLease}
				case p.cuts == 0:
					return Step{FromBackend: 10, FromClient: 10}
				case p.conn != nil:
					return Step{Op: OpRelease}
				}
				return Step{Op: OpDone}
			}
			d := b.drive(cc, p, DriveConfig{})
			proxytest.Receive(t, leasing, "the lease")
			d.cut()
			close(cut)
			d.wait()
			b.expectServes(bc, backend)
			write(t, client, "x")
		}
	})

	t.Run("a released connection has no deadline, even after an interrupt", func(t *testing.T) {
		b := newBench(t, newEngine)
		cc, _ := b.client("tcp")
		bc, backend := b.backend("tcp")
		p := &puppet{TB: t, lease: func() Conn { return bc }}
		p.play = func(p *puppet, now time.Time) Step {
			switch {
			case p.leases == 0:
				return Step{Op: OpLease}
			case len(p.down) == 0:
				return Step{FromBackend: 10, FromClient: 10, Until: now.Add(20 * time.Millisecond)}
			case p.conn != nil:
				return Step{Op: OpRelease}
			case p.cuts == 0:
				return Step{FromClient: 10}
			}
			return Step{Op: OpDone}
		}
		d := b.drive(cc, p, DriveConfig{})
		pause(5 * grace)
		write(t, backend, "reply")
		d.cut()
		d.wait()
		pause(50 * time.Millisecond)
		b.expectServes(bc, backend)
	})

	t.Run("interrupts at any moment hit the one who drives", func(t *testing.T) {
		b := newBench(t, newEngine)
		front := b.listen("tcp")
		pool := lineServer(b, "tcp", fixed(1000))
		for i := range 200 {
			cc, client := b.clientOf(front)
			l := newLiner(t, pool)
			wake, doWake := context.WithCancel(t.Context())
			d := b.drive(cc, l, DriveConfig{Wake: wake})
			write(t, client, "request\n")
			spin(time.Duration(i) * 5 * time.Microsecond)
			doWake()
			if i%2 == 0 {
				expect(t, client, "re: request\n")
				client.CloseWrite()
				expectEOF(t, client, "")
			} else {
				spin(time.Duration(i) * time.Microsecond)
				d.cut()
			}
			d.wait()
			if c, ok := cc.(*netConn); ok && c.hasDeadline() {
				t.Fatal("a deadline is left")
			}
		}
	})

	t.Run("what a drive read is relayed", func(t *testing.T) {
		b := newBench(t, newEngine)
		cc, client := b.client("tcp")
		bc, backend := b.backend("tcp")
		p := request(t, func() Conn { return bc })
		d := b.drive(cc, p, DriveConfig{})
		write(t, client, "request")
		d.wait()
		pause(120 * time.Millisecond) // beyond the limit
		r := b.relay(cc, bc, RelayConfig{Unread: p.up})
		write(t, client, " and more")
		expect(t, backend, "request and more")
		write(t, backend, "reply")
		expect(t, client, "reply")
		client.CloseWrite()
		expectEOF(t, backend, "")
		backend.CloseWrite()
		res := r.close()
		expectEnd(t, res, Finished)
		if res.Up.Taken != 16 || res.Up.Moved != 16 {
			t.Errorf("result = %+v", res)
		}
	})

	t.Run("a relay gives back what a drive read, and a drive reads it again", func(t *testing.T) {
		for _, again := range []string{"relay", "drive"} {
			b := newBench(t, newEngine)
			cc, client := b.client("tcp")
			bc, backend := b.backend("tcp")
			backend.Close()
			proxytest.Eventually(t, "the FIN", func() bool { return peeked(bc).end != nil })
			r := b.relay(cc, bc, RelayConfig{Unread: []byte("request"), Replay: true})
			expectEnd(t, r.wait(), Stale)
			bc.Close()
			if again == "relay" {
				b.expectReplay(cc, client, "request", false)
				continue
			}
			p := b.wants(nil, Step{FromClient: 5}, func(p *puppet) bool { return len(p.up) >= 16 })
			d := b.drive(cc, p, DriveConfig{})
			write(t, client, " and more")
			d.wait()
			if string(p.up) != "request and more" {
				t.Errorf("read %q", p.up)
			}
		}
	})
}

func testUndelivered(t *testing.T, newEngine func(Config) Engine) {
	if runtime.GOOS != "linux" {
		t.Skip("the proof needs Linux's TCP_INFO")
	}
	big := string(newStream(1)[:1<<20])
	read := func(t *testing.T, c proxytest.Conn, n int) { expect(t, c, big[:n]) }
	tests := []struct {
		name    string
		before  func(t *testing.T, c proxytest.Conn) // the drive
		request int
		after   func(t *testing.T, c proxytest.Conn)
		want    bool
		virgin  bool // only provable there
	}{
		{"closed before the request", func(t *testing.T, c proxytest.Conn) { c.Close() }, 10, nil, true, false},
		{"closed before a long request", func(t *testing.T, c proxytest.Conn) { c.Close() }, len(big), nil, true, false},
		{"reset before the request", func(t *testing.T, c proxytest.Conn) { reset(c) }, 10, nil, true, false},
		{"closed, and no request", func(t *testing.T, c proxytest.Conn) { c.Close() }, 0, nil, true, false},
		{"half-closed, the request read and closed", func(t *testing.T, c proxytest.Conn) { c.CloseWrite() }, 10, func(t *testing.T, c proxytest.Conn) {
			read(t, c, 10)
			c.Close()
		}, false, false},
		{"half-closed, the request read and reset", func(t *testing.T, c proxytest.Conn) { c.CloseWrite() }, 10, func(t *testing.T, c proxytest.Conn) {
			read(t, c, 10)
			reset(c)
		}, false, true},
		{"the request read and closed", nil, 10, func(t *testing.T, c proxytest.Conn) { read(t, c, 10); c.Close() }, false, false},
		{"the request read and reset", nil, 10, func(t *testing.T, c proxytest.Conn) { read(t, c, 10); reset(c) }, false, false},
		{"a part read and closed", nil, 10, func(t *testing.T, c proxytest.Conn) { read(t, c, 3); c.Close() }, false, false},
		{"the request come, not read, and closed", nil, 10, func(t *testing.T, c proxytest.Conn) {
			proxytest.Eventually(t, "the request", func() bool { return inQueue(t, c) == 10 })
			c.Close()
		}, false, false},
	}
	for _, state := range []string{"virgin", "used by a relay", "used by a drive", "used in this lease"} {
		for _, wants := range []string{"read", "do not read"} {
			for _, tt := range tests {
				if tt.virgin && state != "virgin" || tt.request != len(big) && wants != "read" && tt.name != "reset before the request" {
					continue
				}
				t.Run(state+"/"+wants+"/"+tt.name, func(t *testing.T) {
					b := newBench(t, newEngine)
					cc, _ := b.client("tcp")
					bc, backend := b.backend("tcp")
					if state == "used by a relay" {
						bc, backend = b.used("tcp")
					}
					exchange := state == "used by a drive" || state == "used in this lease"
					exchanged, begin, wrote := make(chan bool), make(chan bool), make(chan bool)
					over := false
					p := &puppet{TB: t, lease: func() Conn { return bc }}
					p.play = func(p *puppet, now time.Time) Step {
						switch {
						case p.leases == 0 || state == "used by a drive" && p.leases == 1 && over && p.conn == nil:
							return Step{Op: OpLease}
						case p.backendEnd != nil:
							return Step{Op: OpDone}
						case exchange && !over:
							if len(p.down) < 5 {
								return Step{ToBackend: []byte("hello")[p.wroteUp:], FromBackend: 5}
							}
							over, p.wroteUp = true, 0
							close(exchanged)
							<-begin
							if state == "used by a drive" {
								return Step{Op: OpRelease}
							}
						}
						s := Step{ToBackend: []byte(big)[p.wroteUp:tt.request], FromBackend: 10}
						if len(s.ToBackend) > 0 && wants != "read" {
							s.FromBackend = 0
						}
						if len(s.ToBackend) == 0 {
							select {
							case <-wrote:
							default:
								close(wrote)
							}
						}
						return s
					}
					lost := stateLost(t)
					run := func() *driving { return b.drive(cc, p, DriveConfig{}) }
					var d *driving
					if exchange {
						d = run()
						expect(t, backend, "hello")
						write(t, backend, "world")
						<-exchanged
					}
					if tt.before != nil {
						tt.before(t, backend)
						proxytest.Eventually(t, "the end", func() bool { return peeked(bc).end != nil })
					}
					if exchange {
						close(begin)
					} else {
						d = run()
					}
					if tt.after != nil {
						proxytest.Receive(t, wrote, "the request to be written")
						tt.after(t, backend)
					}
					d.wait()
					want := tt.want
					if tt.request == 0 && state == "used in this lease" {
						want = false // the last batch is that of the exchange before, which was read
					}
					if p.undelivered != want {
						lost(t)
						t.Errorf("ended with %v, undelivered %v, want %v", p.backendEnd, p.undelivered, want)
					}
				})
			}
		}
	}

	t.Run("a Unix socket takes nothing after its end", func(t *testing.T) {
		b := newBench(t, newEngine)
		cc, _ := b.client("unix")
		bc, backend := b.backend("unix")
		backend.Close()
		p := b.wants(bc, Step{ToBackend: []byte("request"), FromBackend: 10}, func(p *puppet) bool { return p.backendEnd != nil })
		b.drive(cc, p, DriveConfig{}).wait()
		if !p.undelivered {
			t.Errorf("ended with %v, and may have been delivered", p.backendEnd)
		}
	})
}
