package engine

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

// BenchmarkRelayPingPong is a request and a reply of 64 bytes, the peers' work
// included.
func BenchmarkRelayPingPong(b *testing.B) { onEngines(b, benchRelayPingPong) }

func benchRelayPingPong(b *testing.B, newEngine func(Config) Engine) {
	eng := newBench(b, newEngine)
	s := eng.session("tcp", "tcp", RelayConfig{IdleTimeout: patience, HalfCloseTimeout: patience})
	s.undisturbed()
	go func() {
		io.Copy(s.backend, s.backend)
		s.backend.Close()
	}()
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.client.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(s.client, buf); err != nil {
			b.Fatal(err)
		}
	}
	s.client.Close()
	s.close()
}

// pingPong is a machine for requests and replies of size bytes, with a lease for
// each. While a reply is awaited it also reads the client, which may leave.
type pingPong struct {
	conn, leased     Conn
	size             int
	request, reply   []byte
	toSend, toAnswer []byte
	answered         int
	gone             bool
	limit            time.Duration
}

func (m *pingPong) Next(now time.Time) Step {
	switch {
	case m.gone && m.leased != nil, m.leased != nil && m.answered == m.size:
		return Step{Op: OpRelease}
	case m.gone:
		return Step{Op: OpDone}
	case len(m.toAnswer) > 0:
		return Step{ToClient: m.toAnswer, FromClient: m.size, FromBackend: m.size - m.answered, Until: now.Add(m.limit)}
	case len(m.toSend) > 0:
		return Step{ToBackend: m.toSend, FromClient: m.size, FromBackend: m.size - m.answered, Until: now.Add(m.limit)}
	case m.leased != nil:
		return Step{FromBackend: m.size - m.answered, FromClient: m.size, Until: now.Add(m.limit)}
	case len(m.request) == m.size:
		return Step{Op: OpLease}
	}
	return Step{FromClient: m.size - len(m.request), Until: now.Add(10 * m.limit)}
}

func (m *pingPong) Lease(leased func()) {
	defer leased()
	m.leased, m.answered = m.conn, 0
	m.toSend, m.request = m.request, m.request[:0]
}
func (m *pingPong) Backend() Conn       { return m.leased }
func (m *pingPong) Release()            { m.leased = nil }
func (m *pingPong) ReadClient(p []byte) { m.request = append(m.request, p...) }
func (m *pingPong) ReadBackend(p []byte) {
	m.answered += len(p)
	m.toAnswer = append(m.reply[:0], p...)
}
func (m *pingPong) WroteClient(n int)        { m.toAnswer = m.toAnswer[n:] }
func (m *pingPong) WroteBackend(n int)       { m.toSend = m.toSend[n:] }
func (m *pingPong) ClientEnded(error)        { m.gone = true }
func (m *pingPong) BackendEnded(error, bool) { m.gone = true }
func (m *pingPong) Cut()                     { m.gone = true }

// BenchmarkDrivePingPong is BenchmarkRelayPingPong through a machine.
func BenchmarkDrivePingPong(b *testing.B) { onEngines(b, benchDrivePingPong) }

func benchDrivePingPong(b *testing.B, newEngine func(Config) Engine) {
	eng := newBench(b, newEngine)
	cc, client := eng.client("tcp")
	bc, backend := eng.backend("tcp")
	client.SetDeadline(time.Time{})
	backend.SetDeadline(time.Time{})
	d := eng.drive(cc, &pingPong{conn: bc, size: 64, reply: make([]byte, 64), limit: patience}, DriveConfig{})
	go func() {
		io.Copy(backend, backend)
		backend.Close()
	}()
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(client, buf); err != nil {
			b.Fatal(err)
		}
	}
	client.Close()
	d.wait()
	bc.Close()
}

// BenchmarkRelayBulk moves blocks of 256 KiB one way.
func BenchmarkRelayBulk(b *testing.B) { onEngines(b, benchRelayBulk) }

func benchRelayBulk(b *testing.B, newEngine func(Config) Engine) {
	eng := newBench(b, newEngine)
	s := eng.session("tcp", "tcp", RelayConfig{IdleTimeout: patience, HalfCloseTimeout: patience})
	s.undisturbed()
	drained := async(func() error {
		buf := make([]byte, 256<<10)
		for {
			if _, err := s.backend.Read(buf); err != nil {
				return s.backend.Close()
			}
		}
	})
	buf := make([]byte, 256<<10)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.client.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	s.client.Close()
	<-drained
	s.close()
}

// BenchmarkRelayShortSession is a session of one request, from the client's dial
// to the end of the relay; the backend's connection is dialed in it too.
func BenchmarkRelayShortSession(b *testing.B) { onEngines(b, benchRelayShortSession) }

func benchRelayShortSession(b *testing.B, newEngine func(Config) Engine) {
	eng := newBench(b, newEngine)
	front := eng.listen("tcp")
	addr := proxytest.Serve(b, "tcp", func(c proxytest.Conn) { io.Copy(c, c) })
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if err := shortSession(eng.engine, front, addr, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func shortSession(e Engine, front *acceptor, addr net.Addr, buf []byte) error {
	client, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		return err
	}
	defer client.Close()
	cc, err := front.Accept()
	if err != nil {
		return err
	}
	defer cc.Close()
	dialed, err := net.Dial("tcp", addr.String())
	if err != nil {
		return err
	}
	bc, err := e.Adopt(dialed)
	if err != nil {
		return err
	}
	defer bc.Close()
	donec := make(chan struct{})
	e.Relay(context.Background(), cc, bc, RelayConfig{IdleTimeout: patience}, func(Result) { close(donec) })
	if _, err := client.Write(buf); err != nil {
		return err
	}
	if _, err := io.ReadFull(client, buf); err != nil {
		return err
	}
	client.Close()
	<-donec
	return nil
}

// undisturbed lets the peers take as long as a benchmark does.
func (s *session) undisturbed() {
	s.client.SetDeadline(time.Time{})
	s.backend.SetDeadline(time.Time{})
}
