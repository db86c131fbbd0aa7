package engine

import (
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

// While its machine leases, a client may send more, and leave: its watch has to tell of
// that, whatever the engine has taken ahead.
func TestLeavingBehindBytesIsSeenDuringALease(t *testing.T) { onEngines(t, testLeavingDuringALease) }

func testLeavingDuringALease(t *testing.T, newEngine func(Config) Engine) {
	tests := []struct {
		name  string
		bytes int
		leave func(c proxytest.Conn)
		want  string
	}{
		{"a FIN", 0, func(c proxytest.Conn) { c.CloseWrite() }, "FIN"},
		{"a FIN behind a byte", 1, func(c proxytest.Conn) { c.CloseWrite() }, "bytes FIN"},
		{"a FIN behind more than a buffer", 20000, func(c proxytest.Conn) { c.CloseWrite() }, "bytes FIN"},
		{"a reset behind a byte", 1, func(c proxytest.Conn) { reset0(c) }, "failure"},
		{"a reset behind more than a buffer", 20000, func(c proxytest.Conn) { reset0(c) }, "failure"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, newEngine)
			cc, client := b.client("tcp")
			leasing, left := make(chan struct{}), make(chan struct{})
			p := &puppet{TB: t}
			letGo := sync.OnceFunc(func() { close(left) })
			t.Cleanup(letGo)
			p.lease = func() Conn { close(leasing); <-left; return nil }
			p.play = func(p *puppet, now time.Time) Step {
				switch {
				case len(p.up) == 0:
					return Step{FromClient: len("request")}
				case p.leases == 0:
					return Step{Op: OpLease}
				case len(p.clientEnds) == 0:
					return Step{FromClient: 1000}
				}
				return Step{Op: OpDone}
			}
			d := b.drive(cc, p, DriveConfig{})
			write(t, client, "request")
			proxytest.Receive(t, leasing, "the lease")
			seenc, stop := watching(cc, tt.want)
			proxytest.Receive(t, seenc, "the first call")
			io.WriteString(client, strings.Repeat("x", tt.bytes))
			if tt.bytes > 0 {
				for proxytest.Receive(t, seenc, "bytes").kind() != "bytes" {
				}
			}
			tt.leave(client)
			for proxytest.Receive(t, seenc, tt.name).kind() != tt.want {
			}
			stop()
			letGo()
			d.wait()
			// The kernel drops what a reset has overtaken.
			if got := len(p.up) - len("request"); got != tt.bytes && tt.want != "failure" {
				t.Errorf("read %d bytes after the lease, want %d", got, tt.bytes)
			}
		})
	}
}
