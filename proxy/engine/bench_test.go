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
func BenchmarkRelayPingPong(b *testing.B) {
	eng := newBench(b, func(cfg Config) Engine { return NewNet(cfg) })
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

// BenchmarkRelayBulk moves blocks of 256 KiB one way.
func BenchmarkRelayBulk(b *testing.B) {
	eng := newBench(b, func(cfg Config) Engine { return NewNet(cfg) })
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
func BenchmarkRelayShortSession(b *testing.B) {
	e := NewNet(Config{})
	eng := &bench{b, e}
	front := eng.listen("tcp")
	addr := proxytest.Serve(b, "tcp", func(c proxytest.Conn) { io.Copy(c, c) })
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if err := shortSession(e, front, addr, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func shortSession(e *Net, front Listener, addr net.Addr, buf []byte) error {
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
	go e.Relay(context.Background(), cc, bc, RelayConfig{IdleTimeout: patience}, func(Result) { close(donec) })
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
