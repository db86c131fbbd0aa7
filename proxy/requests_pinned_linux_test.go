package proxy

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// A connection that another client has used may come into the idle set behind the dial
// for a pinned one, and owe that client an answer.
func TestPinnedClientGetsNobodysBytes(t *testing.T) {
	enginetest.Each(t, testPinnedClientGetsNobodysBytes)
}

func testPinnedClientGetsNobodysBytes(t *testing.T) {
	var leaks, pinned atomic.Int64
	be := testBackend(t, 6, func(c proxytest.Conn) {
		var mu sync.Mutex
		for {
			size := make([]byte, 4)
			if _, err := io.ReadFull(c, size); err != nil {
				return
			}
			b := make([]byte, binary.BigEndian.Uint32(size))
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if b[0] == '[' {
				pinned.Add(1)
				after(2 * time.Millisecond)
				mu.Lock()
				c.Write(append(size, b...))
				mu.Unlock()
				return
			}
			m, _ := parseMessage(b)
			if m.typ == frame.Oneway { // answered all the same, late
				time.AfterFunc(time.Millisecond, func() {
					mu.Lock()
					defer mu.Unlock()
					c.Write(m.reply("SECRET").bytes())
				})
				continue
			}
			c.Write(m.reply(m.text).bytes())
		}
	})
	cfg := requestsConfig(be)
	cfg.Requests.Quarantine = 100 * time.Microsecond
	f := start(t, cfg)
	var wg sync.WaitGroup
	stop := time.Now().Add(1500 * time.Millisecond)
	for i := range 4 {
		wg.Go(func() {
			c := f.dial(t)
			for j := uint32(0); time.Now().Before(stop); j++ {
				if got, err := ask(c, call(j, fmt.Sprint(i, j))); err != nil {
					t.Error(got, err)
					return
				}
				if j%8 == 0 {
					send(t, c, oneway(j, "o"))
					after(time.Millisecond)
				}
			}
		})
	}
	for range 4 {
		wg.Go(func() {
			for time.Now().Before(stop) {
				c, err := net.Dial("tcp", f.at.String())
				if err != nil {
					t.Error(err)
					return
				}
				body := `[1,"echo",1,7,{}]`
				b := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
				c.Write(b)
				got, _ := io.ReadAll(c)
				if strings.Contains(string(got), "SECRET") {
					leaks.Add(1)
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	if n := leaks.Load(); n > 0 {
		t.Errorf("%d of %d pinned clients read the answer to another client's call", n, pinned.Load())
	}
}
