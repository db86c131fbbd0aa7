package loadtest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// echoBuffer is what one Read takes at most, and so the longest reply. It is
// held for as long as a connection is open, hence moderate.
const echoBuffer = 16 << 10

// EchoConfig describes the manners of an Echo. The zero value echoes at once
// and never ends a connection by itself.
type EchoConfig struct {
	// Thrift serves calls of the echo service instead of raw bytes.
	Thrift bool

	// Delay is the wait before each reply.
	Delay time.Duration

	// Late splits each reply: the first half is sent at once (after Delay),
	// the rest this much later. Zero sends it whole.
	Late time.Duration

	// Greet is sent as soon as a connection is accepted: a server that speaks
	// first.
	Greet string

	// CloseAfter closes a connection (FIN) once this many bytes of it, or
	// more, were received and echoed. Zero: never. Bytes that arrive but are
	// not read by then turn the FIN into a RST, as they do with any server.
	CloseAfter int64

	// ResetAfter is like CloseAfter with a RST, which may overtake the last
	// reply. Zero: never. A Unix socket knows no RST and is just closed.
	ResetAfter int64

	// Silent reads and never answers.
	Silent bool

	// The rest is for Thrift only. A number N stands for every Nth reply of
	// the server; zero for none.

	// WrongID replies carry another sequence id than their call.
	WrongID int64

	// AnswerOneway replies to calls typed oneway, as servers do whose method has a
	// result.
	AnswerOneway bool

	// Twice replies are sent twice, in one write.
	Twice int64

	// Half replies are cut in half, and the connection is closed.
	Half int64

	// Early answers every Nth call that has more than 1 KiB of frame left
	// after its head, with an exception, before it reads that.
	Early int64

	// After replies are followed by a few bytes that are no message, a little
	// later.
	After int64
}

// EchoStats counts what an Echo did since it was made. The last four stay 0
// without Thrift.
type EchoStats struct {
	Accepted int64 // connections accepted
	Open     int64 // connections open now
	PeakOpen int64 // most connections open at once
	BytesIn  int64 // bytes received
	BytesOut int64 // bytes sent, greetings included
	Calls    int64 // calls received, oneways included
	Oneways  int64 // of them, those that want no reply
	Replies  int64 // replies begun; a second copy of one does not count
	Faults   int64 // faults made as AnswerOneway and those below it tell to
}

// An Echo is a TCP or Unix socket server that sends back what it receives. A
// reply is the echo of what one read returned or, with Thrift, the answer to
// one call.
type Echo struct {
	cfg     EchoConfig
	buffers sync.Pool     // of *[echoBuffer]byte: short sessions leave no garbage
	closed  chan struct{} // closed by Close

	in, out                         atomic.Int64
	calls, oneways, replies, faults atomic.Int64
	large                           atomic.Int64 // calls that could be answered early

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[net.Conn]struct{}
	accepted  int64
	peak      int64
}

// NewEcho makes an echo server. It does nothing until Serve is called.
func NewEcho(cfg EchoConfig) *Echo {
	return &Echo{
		cfg:       cfg,
		buffers:   sync.Pool{New: func() any { return new([echoBuffer]byte) }},
		closed:    make(chan struct{}),
		listeners: make(map[net.Listener]struct{}),
		conns:     make(map[net.Conn]struct{}),
	}
}

// Serve answers the connections that ln accepts until Close is called, then
// returns nil. It waits out temporary faults of accept, such as a lack of file
// descriptors. Any other fault ends the whole server, as Close does, and is
// returned. In either case ln and all connections are closed and every
// goroutine of this call has ended when it returns.
//
// Serve may be called for several listeners at once.
func (e *Echo) Serve(ln net.Listener) error {
	defer ln.Close()
	if !e.addListener(ln) {
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := e.accept(ln)
		switch {
		case e.isClosed():
			if err == nil {
				conn.Close()
			}
			return nil
		case err != nil:
			e.Close()
			return err
		case e.open(conn):
			wg.Go(func() { e.handle(conn) })
		}
	}
}

// Close ends every Serve: it closes the listeners and all connections. It does
// not wait; Serve does. Calling it again does nothing.
func (e *Echo) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isClosed() {
		return
	}
	close(e.closed)
	for ln := range e.listeners {
		ln.Close()
	}
	for conn := range e.conns {
		conn.Close()
	}
}

// Stats returns the counts so far. It may be called at any time.
func (e *Echo) Stats() EchoStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return EchoStats{
		Accepted: e.accepted,
		Open:     int64(len(e.conns)),
		PeakOpen: e.peak,
		BytesIn:  e.in.Load(),
		BytesOut: e.out.Load(),
		Calls:    e.calls.Load(),
		Oneways:  e.oneways.Load(),
		Replies:  e.replies.Load(),
		Faults:   e.faults.Load(),
	}
}

func (e *Echo) isClosed() bool {
	select {
	case <-e.closed:
		return true
	default:
		return false
	}
}

// addListener registers ln for Close. It reports false after Close.
func (e *Echo) addListener(ln net.Listener) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isClosed() {
		return false
	}
	e.listeners[ln] = struct{}{}
	return true
}

// open counts conn and registers it for Close. After Close it closes conn
// instead and reports false.
func (e *Echo) open(conn net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isClosed() {
		conn.Close()
		return false
	}
	e.conns[conn] = struct{}{}
	e.accepted++
	e.peak = max(e.peak, int64(len(e.conns)))
	return true
}

func (e *Echo) forget(conn net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, conn)
}

// handle serves one connection to its end. Its faults are the client's affair
// and no one is told.
func (e *Echo) handle(conn net.Conn) {
	defer e.forget(conn)
	defer conn.Close()
	if e.cfg.Greet != "" && e.send(conn, []byte(e.cfg.Greet)) != nil {
		return
	}
	if e.cfg.Thrift {
		e.serveThrift(conn)
		return
	}
	e.serveRaw(conn)
}

func (e *Echo) serveRaw(conn net.Conn) {
	buf := e.buffers.Get().(*[echoBuffer]byte)
	defer e.buffers.Put(buf)
	for received := int64(0); ; {
		n, err := conn.Read(buf[:])
		if err != nil {
			return // after a FIN: all that came before it has been echoed
		}
		e.in.Add(int64(n))
		received += int64(n)
		if e.reply(conn, buf[:n]) != nil || e.enough(conn, received) {
			return
		}
	}
}

// enough reports whether conn shall be closed by now, and prepares the RST if
// it shall be one.
func (e *Echo) enough(conn net.Conn, received int64) bool {
	if e.cfg.ResetAfter > 0 && received >= e.cfg.ResetAfter {
		if l, ok := conn.(interface{ SetLinger(sec int) error }); ok {
			l.SetLinger(0)
		}
		return true
	}
	return e.cfg.CloseAfter > 0 && received >= e.cfg.CloseAfter
}

func (e *Echo) reply(conn net.Conn, b []byte) error {
	if e.cfg.Silent {
		return nil
	}
	if err := e.wait(e.cfg.Delay); err != nil {
		return err
	}
	if e.cfg.Late <= 0 {
		return e.send(conn, b)
	}
	half := len(b) / 2
	if err := e.send(conn, b[:half]); err != nil {
		return err
	}
	if err := e.wait(e.cfg.Late); err != nil {
		return err
	}
	return e.send(conn, b[half:])
}

func (e *Echo) send(conn net.Conn, b []byte) error {
	n, err := conn.Write(b)
	e.out.Add(int64(n))
	return err
}

// wait lets d pass. It returns io.ErrClosedPipe at once when the server closes.
func (e *Echo) wait(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-e.closed:
		return io.ErrClosedPipe
	}
}
