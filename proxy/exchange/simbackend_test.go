package exchange

import (
	"fmt"
	"strings"
	"time"

	"forebay/proxy/frame"
)

// way is how a backend behaves.
type way int

const (
	honest way = iota
	wrongID
	wrongName
	wrongType
	twice
	late
	never
	half      // of a reply, then it closes
	early     // before the request is complete
	closes    // somewhere in a request
	garbage   // for a reply
	exception // of a code after which servers may be out of step
	unknown   // of one after which they are not
	long      // replies
	idles     // closes after a reply
	reorders  // replies
	ways
)

// simConn is a connection to a backend: to its program, and what is on its way.
type simConn struct {
	*world
	exchange *Conn
	way      way
	in, out  []byte // written by the proxy, and not read yet; by the program
	written  int
	consumed int // by the program
	mark     int // how much was written when the last batch began
	answered bool
	eof      bool // the program has closed it

	scanner frame.Scanner
	request []byte // that is being read
	read    int    // by the proxy
	owed    int    // how much it will have read with the last reply to a call
	calls   int    // calls that were read and not answered
	held    []byte // the reply that is sent after the next
	lateAt  time.Time
	delayed []byte
}

// unclean tells why the connection may not serve another client, as only the model
// can know.
func (b *simConn) unclean() error {
	switch {
	case b.calls > 0:
		return fmt.Errorf("clean, with %d calls that the backend has not answered", b.calls)
	case b.way == honest && b.read < b.owed:
		return fmt.Errorf("clean, with %d bytes of replies that were not read", len(b.out))
	case b.way == honest && b.eof:
		return nil // it may have closed since
	case len(b.request) > 0 && len(b.in) == 0:
		return fmt.Errorf("clean, in the middle of a request")
	}
	return nil
}

// work has the program read some of what was written, and reports whether it did
// anything.
func (b *simConn) work() bool {
	if b.eof {
		return false
	}
	if !b.lateAt.IsZero() && !b.now.Before(b.lateAt) {
		b.out = append(b.out, b.delayed...)
		b.calls--
		b.lateAt, b.delayed = time.Time{}, nil
		return true
	}
	if len(b.in) == 0 {
		b.eof = b.way == idles && b.consumed > 0 && b.chance(20)
		return b.eof
	}
	if b.chance(10) && (b.way == closes || b.way == idles) {
		b.eof = true
		return true
	}
	n := b.some(len(b.in))
	for p := b.in[:n]; len(p) > 0 && !b.eof; {
		p = p[b.parse(p):]
	}
	b.in = b.in[n:]
	return true
}

// parse takes bytes of one request.
func (b *simConn) parse(p []byte) int {
	n, err := b.scanner.Scan(p)
	if err != nil {
		panic(fmt.Sprintf("a backend got what is no request: %v", err))
	}
	b.consumed += n
	b.request = append(b.request, p[:n]...)
	h := b.scanner.Head()
	switch {
	case b.scanner.Done():
		b.execute(message{*h, b.request})
		b.request = nil
		b.scanner.Next()
	case b.way == early && h != nil && len(b.request) > h.Size+100 && h.Type == frame.Call && h.Name != "listed":
		m := message{*h, b.request}
		b.out = append(b.out, m.reply("re "+m.key())...)
		b.eof = true
	}
	return n
}

func (m message) key() string {
	key, _, _ := strings.Cut(m.body(), ";")
	return key + ";"
}

func (b *simConn) execute(m message) {
	b.executed[m.key()]++
	if strings.HasPrefix(m.head.Name, "fire") || m.head.Name == "listed" {
		return
	}
	reply := m.reply("re " + m.body())
	call := m.head.Type == frame.Call
	if !call { // servers answer a call that was typed as oneway by mistake
		if b.way != honest || b.chance(50) {
			b.out = append(b.out, reply...)
		}
		return
	}
	b.answer(m, reply)
}

func (b *simConn) answer(m message, reply []byte) {
	id, name := m.head.ID.Seq, m.head.Name
	switch b.way {
	case wrongID:
		wrong := id - 1 // that of the request before; nobody could tell if that were out
		if b.learn {
			wrong = id - maxCalls
		}
		reply = framed(frame.Reply, name, wrong, "re "+m.body())
	case wrongName:
		reply = framed(frame.Reply, "other", id, "re "+m.body())
	case wrongType:
		reply = framed(frame.Call, name, id, "re "+m.body())
	case twice:
		reply = join(reply, reply[:b.some(len(reply))])
	case late:
		if b.lateAt.IsZero() {
			b.lateAt, b.delayed = b.now.Add(time.Duration(b.rng.IntN(20000))*time.Millisecond), reply
			b.calls++
			return
		}
	case never:
		b.calls++
		return
	case half:
		reply = reply[:b.rng.IntN(len(reply))]
		b.eof = true
	case garbage:
		reply = []byte("HTTP/1.1 200 OK\r\n\r\n")
	case exception:
		reply = m.exception(frame.CodeMissingResult, "why")
	case unknown:
		reply = m.exception(frame.CodeUnknownMethod, "what")
	case long:
		reply = m.reply("re " + m.body() + big(b.rng.IntN(500<<10)))
	case reorders:
		if b.held == nil && len(b.in) > 0 {
			b.held = reply
			b.calls++
			return
		}
		if b.held != nil {
			b.calls--
		}
		reply = join(reply, b.held)
		b.held = nil
	}
	b.out = append(b.out, reply...)
	b.owed = b.read + len(b.out)
}
