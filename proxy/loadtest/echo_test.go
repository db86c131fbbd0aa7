package loadtest

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var networks = []string{"tcp", "unix"}

func TestEchoAnswersWhatItReadsAndClosesAfterTheClient(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			ln := listen(t, network)
			startEcho(t, ln, EchoConfig{})
			conn := dial(t, ln)
			write(t, conn, "ping")
			wantRead(t, conn, "ping")
			write(t, conn, "last words")
			if err := closeWrite(conn); err != nil {
				t.Fatal(err)
			}
			wantRead(t, conn, "last words")
			wantEnd(t, conn, "eof")
		})
	}
}

func TestEchoEndsConnectionsAsToldTo(t *testing.T) {
	tests := []struct {
		name    string
		network string
		cfg     EchoConfig
		err     error // nil: EOF
	}{
		{name: "a FIN over TCP", network: "tcp", cfg: EchoConfig{CloseAfter: 8}},
		{name: "a FIN over a Unix socket", network: "unix", cfg: EchoConfig{CloseAfter: 8}},
		{name: "a RST over TCP", network: "tcp", cfg: EchoConfig{ResetAfter: 5}, err: syscall.ECONNRESET},
		{name: "a close for a RST over a Unix socket", network: "unix", cfg: EchoConfig{ResetAfter: 5}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ln := listen(t, tt.network)
			startEcho(t, ln, tt.cfg)
			conn := dial(t, ln)
			write(t, conn, "ping")
			wantRead(t, conn, "ping")
			write(t, conn, "pong")
			got, err := io.ReadAll(conn)
			if !errors.Is(err, tt.err) || err == nil && string(got) != "pong" { // a RST may overtake the reply
				t.Errorf("read %q, %v; want pong, %v", got, err, tt.err)
			}
		})
	}
}

func TestEchoSpeaksFirst(t *testing.T) {
	ln := listen(t, "tcp")
	startEcho(t, ln, EchoConfig{Greet: "hello\n"})
	conn := dial(t, ln)
	wantRead(t, conn, "hello\n")
	write(t, conn, "ping")
	wantRead(t, conn, "ping")
}

func TestEchoDelaysTheWholeReply(t *testing.T) {
	const delay = 50 * time.Millisecond
	ln := listen(t, "tcp")
	startEcho(t, ln, EchoConfig{Delay: delay})
	conn := dial(t, ln)
	start := time.Now()
	write(t, conn, "ping")
	wantRead(t, conn, "p")
	if took := time.Since(start); took < delay {
		t.Errorf("the first byte took %v, want at least %v", took, delay)
	}
}

func TestEchoDelaysTheSecondHalf(t *testing.T) {
	const late = 100 * time.Millisecond
	ln := listen(t, "tcp")
	startEcho(t, ln, EchoConfig{Late: late})
	conn := dial(t, ln)
	start := time.Now()
	write(t, conn, "ping")
	got := make([]byte, 4)
	if n, err := conn.Read(got); n != 2 || err != nil {
		t.Fatalf("read %q, %v; want half a reply", got[:n], err)
	}
	wantRead(t, conn, "ng")
	if took := time.Since(start); took < late {
		t.Errorf("the reply took %v, want at least %v", took, late)
	}
}

func TestEchoIsSilent(t *testing.T) {
	ln := listen(t, "tcp")
	e := startEcho(t, ln, EchoConfig{Silent: true})
	conn := dial(t, ln)
	write(t, conn, "ping")
	closeWrite(conn)
	wantEnd(t, conn, "eof")
	if s := e.Stats(); s.BytesIn != 4 || s.BytesOut != 0 {
		t.Errorf("stats = %+v, want 4 bytes in and none out", s)
	}
}

func TestEchoCounts(t *testing.T) {
	ln := listen(t, "tcp")
	e := NewEcho(EchoConfig{Greet: "hi"})
	done := make(chan error, 1)
	go func() { done <- e.Serve(ln) }()
	for range 2 {
		conn := dial(t, ln)
		wantRead(t, conn, "hi")
		write(t, conn, "ping")
		wantRead(t, conn, "ping")
	}
	e.Close()
	waitErr(t, done, nil)
	want := EchoStats{Accepted: 2, Open: 0, PeakOpen: 2, BytesIn: 8, BytesOut: 12}
	if got := e.Stats(); got != want {
		t.Errorf("stats = %+v, want %+v", got, want)
	}
}

func TestEchoCloseEndsServeWhateverItDoes(t *testing.T) {
	for _, cfg := range []EchoConfig{{}, {Delay: time.Hour}, {Late: time.Hour}, {Silent: true}} {
		ln := listen(t, "tcp")
		e := NewEcho(cfg)
		done := make(chan error, 1)
		go func() { done <- e.Serve(ln) }()
		conn := dial(t, ln)
		write(t, conn, "ping")
		e.Close()
		e.Close()
		waitErr(t, done, nil)
		if _, err := conn.Read(make([]byte, 8)); err == nil && cfg.Delay > 0 {
			t.Error("a reply after Close")
		}
		if err := e.Serve(listen(t, "tcp")); err != nil {
			t.Errorf("Serve after Close = %v, want nil", err)
		}
	}
}

// faultyListener fails as often as it has errors, then as if it were closed.
type faultyListener struct {
	net.Listener
	errs []error
}

func (l *faultyListener) Accept() (net.Conn, error) {
	if len(l.errs) == 0 {
		return nil, net.ErrClosed
	}
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, err
}

func (l *faultyListener) Close() error { return nil }

func TestEchoWaitsOutTemporaryFaultsOfAccept(t *testing.T) {
	full := &net.OpError{Op: "accept", Err: syscall.EMFILE}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		e := NewEcho(EchoConfig{})
		err := e.Serve(&faultyListener{errs: []error{full, full, syscall.ENOBUFS}})
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve = %v, want net.ErrClosed", err)
		}
		if took := time.Since(start); took != (5+10+20)*time.Millisecond {
			t.Errorf("three faults took %v, want 35ms", took)
		}
	})
}

func TestEchoAnswersMoreThanItsBuffer(t *testing.T) {
	ln := listen(t, "tcp")
	e := startEcho(t, ln, EchoConfig{})
	conn := dial(t, ln)
	long := strings.Repeat("0123456789abcdef", 3*echoBuffer/16)
	write(t, conn, long)
	wantRead(t, conn, long)
	closeWrite(conn)
	wantEnd(t, conn, "eof") // by now the last reply is counted
	if got := e.Stats().BytesOut; got != int64(len(long)) {
		t.Errorf("bytes out = %d, want %d", got, len(long))
	}
}
