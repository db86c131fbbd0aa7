package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// findChromium returns the browser, under the names that distributions give it.
func findChromium() (string, bool) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// browser is a running Chromium. Its pipe takes and gives JSON objects, each followed
// by a zero byte: calls and their replies, which have the same id, and events.
type browser struct {
	to io.WriteCloser

	mu      sync.Mutex
	last    int
	replies map[int]chan message // of the calls that wait
	events  []message            // all that came
}

type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// chromium starts the browser, for the time of the test.
func chromium(t *testing.T, path string) *browser {
	t.Helper()
	args := []string{"--headless", "--remote-debugging-pipe", "--user-data-dir=" + t.TempDir(), "--no-first-run",
		"--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-extensions", "about:blank"}
	if os.Getuid() == 0 {
		args = append([]string{"--no-sandbox"}, args...) // it refuses to be root in one
	}
	theirs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, given, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.ExtraFiles = []*os.File{theirs, given} // descriptors 3 and 4, as the flag has it
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	given.Close()
	b := &browser{to: to, replies: make(map[int]chan message)}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(from) })
	t.Cleanup(func() {
		b.call("", "Browser.close", nil, nil)
		to.Close() // which ends it too
		reading.Wait()
		from.Close()
		cmd.Wait()
	})
	return b
}

// read hands out what comes, until the browser ends.
func (b *browser) read(from io.Reader) {
	r := bufio.NewReader(from)
	for {
		raw, err := r.ReadBytes(0)
		if err != nil {
			break
		}
		var m message
		if json.Unmarshal(raw[:len(raw)-1], &m) != nil {
			break
		}
		b.mu.Lock()
		if c := b.replies[m.ID]; m.ID > 0 && c != nil {
			c <- m
			delete(b.replies, m.ID)
		} else {
			b.events = append(b.events, m)
		}
		b.mu.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.replies {
		close(c)
	}
	b.replies = nil
}

const callTimeout = 30 * time.Second

// call calls a method of the protocol, and reads its result into result, unless nil.
func (b *browser) call(session, method string, params, result any) error {
	p, err := json.Marshal(params)
	if err != nil {
		return err
	}
	replyc := make(chan message, 1)
	b.mu.Lock()
	if b.replies == nil {
		b.mu.Unlock()
		return fmt.Errorf("%s: the browser has ended", method)
	}
	b.last++
	b.replies[b.last] = replyc
	m := message{ID: b.last, Session: session, Method: method}
	if params != nil {
		m.Params = p
	}
	raw, err := json.Marshal(m)
	if err == nil {
		_, err = b.to.Write(append(raw, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	select {
	case reply, ok := <-replyc:
		switch {
		case !ok:
			return fmt.Errorf("%s: the browser has ended", method)
		case reply.Error != nil:
			return fmt.Errorf("%s: %s", method, reply.Error.Message)
		case result == nil:
			return nil
		}
		return json.Unmarshal(reply.Result, result)
	case <-ctx.Done():
		return fmt.Errorf("%s: no reply", method)
	}
}
