package config

import (
	"strings"
	"testing"
	"time"
)

func defaultRequests() Requests {
	return Requests{
		Pooling:          "request",
		ThriftTransport:  "auto",
		ThriftProtocol:   "auto",
		MaxFrame:         16384000,
		MaxMessage:       100 << 20,
		CheckFrames:      true,
		LengthField:      LengthField{Width: 4},
		LearnOneway:      true,
		OnewayQuarantine: 50 * time.Millisecond,
		ReplyTimeout:     30 * time.Second,
		ReplyBuffer:      256 << 10,
		BufferMemory:     256 << 20,
	}
}

func TestServeTakesHowRequestsShareConnections(t *testing.T) {
	tests := []struct {
		protocol, flag, value string
		set                   func(*Requests)
	}{
		{"thrift", "pooling", "session", func(r *Requests) { r.Pooling = "session" }},
		{"thrift", "thrift-transport", "header", func(r *Requests) { r.ThriftTransport = "header" }},
		{"thrift", "thrift-protocol", "binary-old", func(r *Requests) { r.ThriftProtocol = "binary-old" }},
		{"thrift", "max-frame", "1MiB", func(r *Requests) { r.MaxFrame = 1 << 20 }},
		{"length", "max-frame", "64", func(r *Requests) { r.MaxFrame = 64 }},
		{"thrift", "max-message", "1GiB", func(r *Requests) { r.MaxMessage = 1 << 30 }},
		{"thrift", "check-frames", "off", func(r *Requests) { r.CheckFrames = false }},
		{"thrift", "oneway-method", "Echo:fire", func(r *Requests) { r.OnewayMethods = []string{"Echo:fire"} }},
		{"thrift", "learn-oneway", "false", func(r *Requests) { r.LearnOneway = false }},
		{"thrift", "oneway-quarantine", "0", func(r *Requests) { r.OnewayQuarantine = 0 }},
		{"length", "idempotent-method", "get", func(r *Requests) { r.IdempotentMethods = []string{"get"} }},
		{"length", "reply-timeout", "1s", func(r *Requests) { r.ReplyTimeout = time.Second }},
		{"thrift", "reply-buffer", "64KiB", func(r *Requests) { r.ReplyBuffer = 64 << 10 }},
		{"thrift", "buffer-memory", "1MiB", func(r *Requests) { r.BufferMemory = 1 << 20 }},
		{"length", "length-field", "offset=4,width=4,endian=little,adjust=-8", func(r *Requests) {
			r.LengthField = LengthField{Offset: 4, Width: 4, Little: true, Adjust: -8}
		}},
		{"length", "length-field", "width=2", func(r *Requests) { r.LengthField = LengthField{Width: 2} }},
		{"length", "length-id", "offset=12,width=8", func(r *Requests) { r.LengthID = LengthID{12, 8} }},
	}
	for _, tt := range tests {
		t.Run(tt.flag+"="+tt.value, func(t *testing.T) {
			want := defaultServe()
			want.Protocol, want.MinIdle = tt.protocol, 0
			tt.set(&want.Requests)
			line := "--backend a:1 --protocol " + tt.protocol
			checkServe(t, line+" --"+tt.flag+"="+tt.value, nil, want)
			env := "FOREBAY_" + strings.ReplaceAll(strings.ToUpper(tt.flag), "-", "_")
			checkServe(t, line, map[string]string{env: tt.value}, want)
		})
	}
}

func TestNothingIsDialedAheadForRequestsUnlessAsked(t *testing.T) {
	tests := []struct {
		line string
		env  map[string]string
		want int
	}{
		{line: "--protocol raw", want: MinIdleAuto},
		{line: "--protocol thrift", want: 0},
		{line: "--protocol length", want: 0},
		{line: "--protocol thrift --min-idle auto", want: MinIdleAuto},
		{line: "--protocol thrift", env: map[string]string{"FOREBAY_MIN_IDLE": "3"}, want: 3},
	}
	for _, tt := range tests {
		c := run(t, "--backend a:1 "+tt.line, tt.env, nil)
		if c.serve == nil || c.serve.MinIdle != tt.want {
			t.Errorf("%s %v: %+v %s; want min-idle %d", tt.line, tt.env, c.serve, c.stderr, tt.want)
		}
	}
}

func TestFlagsOfAnotherProtocolAreRefused(t *testing.T) {
	tests := []struct {
		line string
		env  map[string]string
		want string
	}{
		{line: "--thrift-transport framed", want: "--thrift-transport beside --protocol raw; takes --protocol thrift"},
		{line: "--protocol length --oneway-method fire", want: "--oneway-method beside --protocol length; takes --protocol thrift"},
		{line: "--protocol thrift --length-id offset=0", want: "--length-id beside --protocol thrift; takes --protocol length"},
		{line: "--pooling session", want: "--pooling beside --protocol raw; takes --protocol thrift or length"},
		{env: map[string]string{"FOREBAY_REPLY_TIMEOUT": "3s"}, want: "FOREBAY_REPLY_TIMEOUT beside --protocol raw; takes --protocol thrift or length"},
		{line: "--protocol thrift --reuse quiet", want: `--reuse: got "quiet" beside --protocol thrift; takes never there`},
		{line: "--protocol thrift --reuse trust", want: `--reuse: got "trust" beside --protocol thrift; takes trust only beside --protocol length without --length-id`},
		{line: "--protocol length --length-id offset=8 --reuse trust", want: `--reuse: got "trust" beside --protocol length`},
		{line: "--protocol length --length-id offset=2,width=4", want: "--length-id: got bytes 2 to 5; takes bytes beside those of the length, 0 to 3"},
		{line: "--protocol length --length-id offset=80,width=4 --max-frame 70", want: "--max-frame: got 70; takes at least the 84 bytes"},
		{line: "--protocol length --length-field offset=-1", want: `--length-field: got "offset=-1": "offset=-1" cannot be; takes offset=0 to 1024`},
		{line: "--protocol length --length-field width=5", want: `"width=5" cannot be`},
		{line: "--protocol length --length-field width=4,width=4", want: `"width=4" cannot be`},
		{line: "--protocol length --length-field endian=middle", want: `"endian=middle" cannot be`},
		{line: "--protocol length --length-id size=4", want: `--length-id: got "size=4": "size=4" cannot be; takes offset=0 to 1024 and width=`},
		{line: "--protocol thrift --max-frame 2GiB", want: `--max-frame: got "2GiB"; takes bytes from 64 to 1073741823, or a number with KiB, MiB or GiB`},
		{line: "--protocol thrift --max-frame 16MB", want: `got "16MB"`},
		{line: "--protocol thrift --oneway-method a,b", want: `--oneway-method: got "a,b"; takes a method's name`},
	}
	for _, tt := range tests {
		c := run(t, "--backend a:1 "+tt.line, tt.env, nil)
		if c.serve != nil || c.status != 2 || !strings.Contains(c.stderr, tt.want) || strings.Count(c.stderr, "\n") > 2 {
			t.Errorf("%s %v: status %d, %q; want 2 and %q", tt.line, tt.env, c.status, c.stderr, tt.want)
		}
	}
}
