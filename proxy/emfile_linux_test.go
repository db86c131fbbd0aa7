package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

const (
	engineEnv  = "FOREBAY_TEST_ENGINE"
	backendEnv = "FOREBAY_TEST_BACKEND"
	spareFDs   = 31 // of the child: fifteen sessions, and half of what one more needs
)

func init() { children["proxy short of descriptors"] = shortOfDescriptors }

// shortOfDescriptors is a proxy that finds, once it serves, that it has few
// descriptors. It says where it listens, logs after that, and ends with its input.
func shortOfDescriptors() {
	eng, err := enginetest.Named(os.Getenv(engineEnv))
	if err != nil {
		panic(err)
	}
	cfg := config(Backend{Network: "tcp", Addr: os.Getenv(backendEnv), Max: 100, Weight: 1})
	cfg.Engine, cfg.Log = eng, zerolog.New(os.Stdout)
	srv, err := New(cfg)
	if err != nil {
		panic(err)
	}
	ln, err := eng.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(ln.Addr())
	go srv.Serve(ln)
	used, err := os.ReadDir("/proc/self/fd") // what the engine itself needs must be open by now
	if err != nil {
		panic(err)
	}
	limit := unix.Rlimit{Cur: uint64(len(used)) - 1 + spareFDs, Max: 4096}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		panic(err)
	}
	fmt.Println("limited")
	io.Copy(io.Discard, os.Stdin)
}

// child is a running program of children.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Scanner
	book  book
	wg    sync.WaitGroup
}

func startChild(t *testing.T, name string, env ...string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(append(os.Environ(), childEnv+"="+name, engineEnv+"="+enginetest.Name(t)), env...)
	c.cmd.Stderr = os.Stderr
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.stdin, c.out = stdin, bufio.NewScanner(stdout)
	t.Cleanup(func() {
		stdin.Close()
		c.wg.Wait()
		c.cmd.Wait()
	})
	return c
}

// line returns the next line of the child's output.
func (c *child) line(t *testing.T) string {
	t.Helper()
	if !c.out.Scan() {
		t.Fatal("the child has ended: ", c.out.Err())
	}
	return c.out.Text()
}

// keep puts the lines that follow into the book.
func (c *child) keep() {
	c.wg.Go(func() {
		for c.out.Scan() {
			if json.Valid(c.out.Bytes()) {
				c.book.Write(c.out.Bytes())
			}
		}
	})
}

// processorTime is what the child has used.
func (c *child) processorTime(t *testing.T) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var user, system int64 // in hundredths of a second
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}

func TestDescriptorsThatRunOutStopNobody(t *testing.T) {
	enginetest.Each(t, testDescriptorsThatRunOutStopNobody)
}

func testDescriptorsThatRunOutStopNobody(t *testing.T) {
	begin := time.Now()
	be := testBackend(t, 100, fickle(t))
	c := startChild(t, "proxy short of descriptors", backendEnv+"="+be.Addr)
	addr, err := net.ResolveTCPAddr("tcp", c.line(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.line(t); got != "limited" {
		t.Fatalf("the child says %q", got)
	}
	c.keep()

	var running []proxytest.Conn
	for range 10 {
		conn := proxytest.Dial(t, addr)
		ping(t, conn)
		running = append(running, conn)
	}
	var newcomers sync.WaitGroup
	warned := make(chan struct{})
	for range 15 { // for whom there are enough once those that run have gone
		newcomers.Go(func() {
			conn, err := net.Dial("tcp", addr.String())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(20 * time.Second))
			io.WriteString(conn, "ping")
			if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
				t.Errorf("a newcomer was not served: %v", err)
			}
			<-warned // or those that are quick would leave enough for the slow
		})
	}
	proxytest.Eventually(t, "the warning", func() bool { return len(c.book.with("cannot accept clients; trying on")) > 0 })
	close(warned)

	before, second := c.processorTime(t), time.Now()
	for pause := time.NewTicker(50 * time.Millisecond); time.Since(second) < time.Second; <-pause.C {
		for _, conn := range running {
			ping(t, conn)
		}
	}
	if used, took := c.processorTime(t)-before, time.Since(second); used > took/5 {
		t.Errorf("%v of processor time in %v without a descriptor, want under 20 %%", used, took)
	}
	for _, conn := range running {
		conn.Close()
	}
	newcomers.Wait()
	if n, most := len(c.book.with("cannot accept clients; trying on")), 1+int(time.Since(begin)/sayAgain); n > most {
		t.Errorf("said %d times that clients cannot be accepted, want at most %d", n, most)
	}
	if n := len(c.book.with("backend is down")); n != 0 {
		t.Errorf("said %d times that the backend is down, for a fault of this machine", n)
	}
}
