package proxy

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// A server that ends takes all with it: descriptors, rings and their mappings, the
// kernel's workers, goroutines, and what its engine asked of the scheduler.
func TestNothingIsLeftOfAServer(t *testing.T) { enginetest.Each(t, testNothingIsLeftOfAServer) }

// remains takes stock of what a server might leave behind.
func remains(t *testing.T) map[string]int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	workers := 0
	tasks, _ := filepath.Glob("/proc/self/task/*/comm")
	for _, path := range tasks {
		if comm, _ := os.ReadFile(path); strings.HasPrefix(string(comm), "iou-") {
			workers++
		}
	}
	return map[string]int{"descriptors": len(fds), "mappings of rings": strings.Count(string(maps), "io_uring"),
		"workers": workers, "goroutines": runtime.NumGoroutine(), "GOMAXPROCS": runtime.GOMAXPROCS(0)}
}

func testNothingIsLeftOfAServer(t *testing.T) {
	t.Run("first", serveCrowd) // what the runtime keeps is there from now on
	before := remains(t)
	for i := range 5 {
		t.Run(fmt.Sprint("server ", i), serveCrowd)
	}
	more := ""
	proxytest.Eventually(t, "nothing to be left", func() bool {
		more = ""
		for what, n := range remains(t) {
			if n > before[what] {
				more += fmt.Sprintf("%d %s, before %d; ", n, what, before[what])
			}
		}
		if now := runtime.GOMAXPROCS(0); now != before["GOMAXPROCS"] {
			more += fmt.Sprint("GOMAXPROCS ", now)
		}
		return more == ""
	})
}

// serveCrowd serves clients that are served whole, that reset, and that are cut.
func serveCrowd(t *testing.T) {
	cfg := config(testBackend(t, 40, echo), testBackend(t, 40, echo))
	cfg.AcquireTimeout, cfg.ReuseQuiet = 20*time.Second, time.Millisecond
	f := start(t, cfg)
	var clients sync.WaitGroup
	for i := range 150 {
		clients.Go(func() {
			c, err := net.Dial("tcp", f.at.String())
			if err != nil {
				t.Error(err)
				return
			}
			if i%5 == 4 { // it stays, and is cut
				t.Cleanup(func() { c.Close() })
			} else {
				defer c.Close()
			}
			if err := exchangePattern(c, i); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
			if i%5 == 3 {
				c.(*net.TCPConn).SetLinger(0)
			}
		})
	}
	clients.Wait()
	f.stop(t)
	if n := f.Stats().Ended[Cut.String()]; n != 30 {
		t.Errorf("%d sessions were cut, want 30", n)
	}
}

// exchangePattern has client i's own bytes echoed.
func exchangePattern(c net.Conn, i int) error {
	c.SetDeadline(time.Now().Add(20 * time.Second))
	want := strings.Repeat(fmt.Sprintf("client %d; ", i), 1+i*37%1000)
	go io.WriteString(c, want)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != want {
		return fmt.Errorf("foreign bytes")
	}
	return nil
}
