package loadtest

import (
	"io"
	"maps"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// A badHandler serves one or two connections in its own way. The second is nil
// unless the server takes them in pairs.
type badHandler func(conns [2]net.Conn, size int)

// serveBad has handle serve each connection to ln, until the test ends.
func serveBad(t *testing.T, ln net.Listener, handle badHandler, size int) {
	t.Helper()
	serveGroups(t, ln, 1, handle, size)
}

// serveGroups has handle serve every n connections together.
func serveGroups(t *testing.T, ln net.Listener, n int, handle badHandler, size int) {
	t.Helper()
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // runs after the listener is closed
	t.Cleanup(func() { ln.Close() })
	wg.Go(func() {
		for serveGroup(ln, n, handle, size) == nil {
		}
	})
}

func serveGroup(ln net.Listener, n int, handle badHandler, size int) error {
	var conns [2]net.Conn
	for i := range n {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		conns[i] = conn
	}
	handle(conns, size)
	return nil
}

// readRequest returns the next request, or less of it before the end.
func readRequest(conn net.Conn, size int) []byte {
	b := make([]byte, size)
	n, _ := io.ReadFull(conn, b)
	return b[:n]
}

// The bad servers. Each answers a request, if at all, in a way of its own.

func swap(conns [2]net.Conn, size int) {
	a, b := readRequest(conns[0], size), readRequest(conns[1], size)
	conns[0].Write(b)
	conns[1].Write(a)
	readRequest(conns[0], 1) // until the client has seen it
	readRequest(conns[1], 1)
}

func corrupt(at int) badHandler {
	return func(conns [2]net.Conn, size int) {
		b := readRequest(conns[0], size)
		b[at] ^= 1
		conns[0].Write(b)
		readRequest(conns[0], 1)
	}
}

func answerTwice(conns [2]net.Conn, size int) {
	b := readRequest(conns[0], size)
	conns[0].Write(append(b, b...))
	readRequest(conns[0], 1)
}

func answerTheFirstAgain(conns [2]net.Conn, size int) {
	first := readRequest(conns[0], size)
	conns[0].Write(first)
	readRequest(conns[0], size)
	conns[0].Write(first)
	readRequest(conns[0], 1)
}

func addByteAtTheEnd(conns [2]net.Conn, size int) {
	conns[0].Write(readRequest(conns[0], size))
	readRequest(conns[0], 1) // the client's FIN
	conns[0].Write([]byte{0})
}

func closeInTheMiddle(conns [2]net.Conn, size int) {
	conns[0].Write(readRequest(conns[0], size)[:size/2])
}

func closeAtOnce([2]net.Conn, int) {}

func reset(conns [2]net.Conn, size int) {
	readRequest(conns[0], size)
	conns[0].(*net.TCPConn).SetLinger(0)
}

func neverAnswer(conns [2]net.Conn, size int) {
	readRequest(conns[0], size)
	readRequest(conns[0], 1)
}

func TestRunCountsWhatABadServerDoesAsWhatItIs(t *testing.T) {
	const short = 100 * time.Millisecond
	type kinds = map[string]int64
	tests := []struct {
		name       string
		handle     badHandler
		cfg        LoadConfig // Clients, if not 1, is also how many the server takes together
		replies    int64
		errors     int64
		mismatches int64
		want       kinds
	}{
		{name: "swaps two clients' replies", handle: swap, cfg: LoadConfig{Clients: 2, Requests: 2}, mismatches: 2, want: kinds{otherClient: 2}},
		{name: "corrupts the client's number", handle: corrupt(2), cfg: LoadConfig{Requests: 3}, mismatches: 3, want: kinds{altered: 3}},
		{name: "corrupts a byte of the middle", handle: corrupt(33), cfg: LoadConfig{Requests: 3}, mismatches: 3, want: kinds{altered: 3}},
		{name: "corrupts the last byte", handle: corrupt(63), cfg: LoadConfig{Requests: 3}, mismatches: 3, want: kinds{altered: 3}},
		{name: "answers twice", handle: answerTwice, cfg: LoadConfig{Requests: 1, RequestsPerClient: 1}, mismatches: 1, want: kinds{extraBytes: 1}},
		{name: "answers an old request", handle: answerTheFirstAgain, cfg: LoadConfig{Requests: 4}, replies: 2, mismatches: 2, want: kinds{otherRequest: 2}},
		{name: "adds a byte at the end of a session", handle: addByteAtTheEnd, cfg: LoadConfig{Requests: 3, RequestsPerClient: 1}, replies: 3, mismatches: 3, want: kinds{extraBytes: 3}},
		{name: "adds a byte at the end of the run", handle: addByteAtTheEnd, cfg: LoadConfig{Requests: 1}, replies: 1, mismatches: 1, want: kinds{extraBytes: 1}},
		{name: "closes in the middle of a reply", handle: closeInTheMiddle, cfg: LoadConfig{Requests: 3}, errors: 3, want: kinds{"reply_eof": 3}},
		{name: "resets", handle: reset, cfg: LoadConfig{Requests: 3}, errors: 3, want: kinds{"reply_reset": 3}},
		{name: "never answers", handle: neverAnswer, cfg: LoadConfig{Requests: 2, Timeout: short}, errors: 2, want: kinds{"reply_timeout": 2}},
		{name: "closes instead of greeting", handle: closeAtOnce, cfg: LoadConfig{Requests: 2, Skip: 5}, errors: 2, want: kinds{"greeting_eof": 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ln := listen(t, "tcp")
			tt.cfg.Size = 64
			tt.cfg.Clients = max(1, tt.cfg.Clients)
			serveGroups(t, ln, tt.cfg.Clients, tt.handle, tt.cfg.Size)
			res := load(t, ln, tt.cfg)
			if res.OK() || res.Requests != tt.cfg.Requests || res.Errors != tt.errors || res.Mismatches != tt.mismatches {
				t.Errorf("result = %+v, want %d errors, %d mismatches", res, tt.errors, tt.mismatches)
			}
			if got := kindsOf(res); !maps.Equal(got, tt.want) || res.FirstError == "" {
				t.Errorf("faults = %v (%s), want %v", got, res.FirstError, tt.want)
			}
			if res.Replies != tt.replies && tt.want[extraBytes] == 0 {
				t.Errorf("replies = %d, want %d", res.Replies, tt.replies)
			}
		})
	}
}

func kindsOf(res Result) map[string]int64 {
	kinds := make(map[string]int64)
	for _, f := range res.Faults {
		kinds[f.Kind] = f.Count
	}
	return kinds
}

func TestRunCountsAConnectionThatNeverEnds(t *testing.T) {
	ln := listen(t, "tcp")
	over := make(chan struct{})
	serveBad(t, ln, func(conns [2]net.Conn, size int) {
		conns[0].Write(readRequest(conns[0], size))
		<-over
	}, 64)
	res := load(t, ln, LoadConfig{Clients: 1, Size: 64, Requests: 1, Timeout: 100 * time.Millisecond})
	close(over)
	if got := kindsOf(res); res.Replies != 1 || res.Errors != 1 || got["close_timeout"] != 1 {
		t.Errorf("result = %+v, want a timeout of the close", res)
	}
}

func TestRunCountsALargeRequestThatIsNotRead(t *testing.T) {
	ln := listen(t, "tcp")
	serveBad(t, ln, func(conns [2]net.Conn, _ int) { readRequest(conns[0], 1) }, 1)
	res := load(t, ln, LoadConfig{Clients: 1, Size: 32 << 20, Requests: 2})
	if res.Requests != 2 || res.Errors != 2 || res.Mismatches != 0 {
		t.Errorf("result = %+v, want two errors", res)
	}
}

func TestRunCountsAWrongReplyToALargeRequestThatIsNotRead(t *testing.T) {
	for _, thrift := range []bool{false, true} {
		ln := listen(t, "tcp")
		over := make(chan struct{})
		serveBad(t, ln, func(conns [2]net.Conn, _ int) {
			conns[0].Write([]byte("no reply to anything"))
			<-over
		}, 0)
		res := load(t, ln, LoadConfig{Thrift: thrift, Clients: 1, Size: 12 << 20, Requests: 1, Timeout: patience})
		close(over)
		if got := kindsOf(res); got[altered] != 1 || len(got) != 1 {
			t.Errorf("result = %+v, want the reply counted at once", res)
		}
	}
}

func TestRunBacksOffFromADeadServer(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	closed := listen(t, "tcp")
	closed.Close()
	tests := []struct {
		network, addr, want string
	}{
		{network: "tcp", addr: closed.Addr().String(), want: "dial_refused"},
		{network: "unix", addr: gone, want: "dial_no_socket"},
	}
	for _, tt := range tests {
		t.Run(tt.network, func(t *testing.T) {
			start := time.Now()
			res, err := Run(t.Context(), LoadConfig{Network: tt.network, Addr: tt.addr, Clients: 1, Size: 16, Requests: 4})
			if err != nil || res.Requests != 4 || res.Errors != 4 || res.Sessions != 0 {
				t.Errorf("result = %+v, %v; want four errors", res, err)
			}
			if got := kindsOf(res); got[tt.want] != 4 {
				t.Errorf("faults = %v, want 4 of %s", got, tt.want)
			}
			if took := time.Since(start); took < (10+20+40)*time.Millisecond {
				t.Errorf("four dials took %v, want 70ms or more", took)
			}
		})
	}
}
