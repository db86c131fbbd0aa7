package health

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

// asks makes one check of a real backend.
func asks(t *testing.T, at net.Addr, talk Talk, timeout time.Duration) error {
	t.Helper()
	cfg, err := Config{Network: at.Network(), Addr: at.String(), Owner: &rig{}, Interval: time.Second,
		Timeout: timeout, Talk: talk}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return cfg.ask(t.Context())
}

// wantError checks an error by a part of its text; "" is none.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("it failed: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error = %v, want %q", err, want)
	}
}

// brief is the timeout of checks that run into it.
const brief = 30 * time.Millisecond

func TestConnecting(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			closed := make(chan error, 1)
			at := proxytest.Serve(t, network, func(c proxytest.Conn) {
				_, err := c.Read(make([]byte, 1))
				closed <- err
			})
			wantError(t, asks(t, at, nil, time.Minute), "")
			if err := proxytest.Receive(t, closed, "the end of the check's connection"); err != io.EOF {
				t.Errorf("the backend read %v, want a FIN", err)
			}
		})
		t.Run(network+" refused", func(t *testing.T) {
			ln := proxytest.Listen(t, network)
			ln.Close()
			if err := asks(t, ln.Addr(), nil, time.Minute); err == nil {
				t.Errorf("a check of nobody = %v, want an error of the backend", err)
			}
		})
	}
}

// silent says nothing until the check has gone.
func silent(c proxytest.Conn) { io.Copy(io.Discard, c) }

// says sends what it has to say, whatever it is asked, and waits.
func says(pieces ...string) func(proxytest.Conn) {
	return func(c proxytest.Conn) {
		for _, p := range pieces {
			if _, err := io.WriteString(c, p); err != nil {
				return
			}
		}
		silent(c)
	}
}

// ends reads the question, answers, and ends.
func ends(answer string) func(proxytest.Conn) {
	return func(c proxytest.Conn) {
		c.Read(make([]byte, 1024))
		io.WriteString(c, answer)
	}
}

// floods sends for ever.
func floods(c proxytest.Conn) {
	for {
		if _, err := c.Write(make([]byte, 4096)); err != nil {
			return
		}
	}
}

func hangsUp(c proxytest.Conn) {
	c.Read(make([]byte, 1024))
}

func resets(c proxytest.Conn) {
	c.Read(make([]byte, 1024))
	c.(*net.TCPConn).SetLinger(0)
}

func TestSendExpect(t *testing.T) {
	ping := SendExpect{Send: []byte("PING\r\n"), Expect: []byte("+PONG")}
	tests := []struct {
		name    string
		backend func(proxytest.Conn)
		check   SendExpect
		timeout time.Duration
		want    string
	}{
		{"an answer", says("+PONG\r\n"), ping, time.Minute, ""},
		{"one behind a greeting", says("hello\r\n", "+PONG\r\n"), ping, time.Minute, ""},
		{"one after much else", says(strings.Repeat("x", maxAnswer-5), "+PONG"), ping, time.Minute, ""},
		{"one after too much", says(strings.Repeat("x", maxAnswer-4), "+PONG"), ping, time.Minute, `expected "+PONG" within 16384 bytes, got "xxx`},
		{"no end of anything", floods, ping, time.Minute, "within 16384 bytes"},
		{"something else", ends("-LOADING"), ping, time.Minute, `expected "+PONG", got "-LOADING": EOF`},
		{"nothing", silent, ping, brief, "i/o timeout"},
		{"an end", hangsUp, ping, time.Minute, `expected "+PONG", got "": EOF`},
		{"a reset", resets, ping, time.Minute, "reset"},
		{"a greeting, with nothing sent", says("220 mail\r\n"), SendExpect{Expect: []byte("220 ")}, time.Minute, ""},
		{"anything at all", says("x"), SendExpect{Send: []byte("?")}, time.Minute, ""},
		{"not even that", silent, SendExpect{Send: []byte("?")}, brief, "i/o timeout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			at := proxytest.Serve(t, "tcp", tt.backend)
			wantError(t, asks(t, at, tt.check.Talk, tt.timeout), tt.want)
		})
	}
}

func TestSendExpectFindsWhatComesInPieces(t *testing.T) {
	ours, theirs := net.Pipe()
	donec := make(chan struct{})
	go func() {
		defer close(donec)
		defer theirs.Close()
		for _, b := range []byte("++PO+PONG") { // one read each
			theirs.Write([]byte{b})
		}
	}()
	wantError(t, SendExpect{Expect: []byte("+PONG")}.Talk(ours), "")
	ours.Close()
	proxytest.Receive(t, donec, "the end of the backend")
}

func TestSendExpectAsksBeforeItExpects(t *testing.T) {
	at := proxytest.Serve(t, "unix", func(c proxytest.Conn) {
		got := make([]byte, 4)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "\x00\x01?\n" {
			t.Errorf("the backend read %q, %v", got, err)
		}
		io.WriteString(c, "!")
	})
	wantError(t, asks(t, at, SendExpect{Send: []byte("\x00\x01?\n"), Expect: []byte("!")}.Talk, time.Minute), "")
}

func TestUnescape(t *testing.T) {
	tests := []struct{ in, want string }{
		{``, ""},
		{`PING`, "PING"},
		{`PING\r\n`, "PING\r\n"},
		{`\t\0\\`, "\t\x00\\"},
		{`\x00\xfF\x41b`, "\x00\xffAb"},
		{`\\n`, `\n`},
		{`\00`, "\x000"},
		{"žluťoučký", "žluťoučký"},
	}
	for _, tt := range tests {
		if got, err := Unescape(tt.in); err != nil || string(got) != tt.want {
			t.Errorf("Unescape(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
}

func TestUnescapeSaysWhatIsWrong(t *testing.T) {
	const these = ` is no escape; these are: \r \n \t \0 \\ \xNN`
	tests := []struct{ in, want string }{
		{`\q`, `"\\q" at byte 0 of "\\q"` + these},
		{`ab\`, `"\\" at byte 2 of "ab\\"` + these},
		{`\x`, `"\\x" at byte 0 of "\\x"` + these},
		{`\x4`, `"\\x4" at byte 0 of "\\x4"` + these},
		{`a\x4gb`, `"\\x4g" at byte 1 of "a\\x4gb"` + these},
		{`\x+4`, `"\\x+4" at byte 0 of "\\x+4"` + these},
		{`\R`, `"\\R" at byte 0 of "\\R"` + these},
	}
	for _, tt := range tests {
		if got, err := Unescape(tt.in); err == nil || err.Error() != tt.want {
			t.Errorf("Unescape(%q) = %q, %v; want %s", tt.in, got, err, tt.want)
		}
	}
}

func FuzzUnescape(f *testing.F) {
	f.Add([]byte(`PING\r\n`))
	f.Add([]byte{0, '\\', 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		Unescape(string(b)) // whatever an operator writes
		var s strings.Builder
		for _, c := range b {
			s.WriteString(`\x`)
			s.WriteByte("0123456789abcdef"[c>>4])
			s.WriteByte("0123456789abcdef"[c&15])
		}
		if got, err := Unescape(s.String()); err != nil || string(got) != string(b) {
			t.Errorf("Unescape(%q) = %q, %v; want %q", s.String(), got, err, b)
		}
	})
}
