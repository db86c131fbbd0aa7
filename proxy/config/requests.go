package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Requests is how requests share backend connections.
type Requests struct {
	// Pooling is "request" or "session".
	Pooling string

	// ThriftTransport is "auto", "framed", "unframed" or "header";
	// ThriftProtocol "auto", "binary", "binary-old" or "compact".
	ThriftTransport, ThriftProtocol string

	// MaxFrame and MaxMessage bound a message with and without a length before
	// it, in bytes; above 0.
	MaxFrame, MaxMessage int64

	// CheckFrames refuses Thrift frames that do not hold exactly one message.
	CheckFrames bool

	// LengthField and LengthID are where the messages of "length" have their
	// length and, if its Width is above 0, their id.
	LengthField LengthField
	LengthID    LengthID

	// OnewayMethods have no reply, whatever their calls are typed; LearnOneway
	// finds out about others. OnewayQuarantine is how long a connection is not
	// shared after a oneway call; zero: not at all.
	OnewayMethods    []string
	LearnOneway      bool
	OnewayQuarantine time.Duration

	// IdempotentMethods may be executed twice.
	IdempotentMethods []string

	// ReplyTimeout is the longest wait for a reply. Zero: no limit.
	ReplyTimeout time.Duration

	// ReplyBuffer and BufferMemory bound, in bytes, what is read of replies ahead
	// of one slow client, and of all of them.
	ReplyBuffer, BufferMemory int64
}

// LengthField tells where a message's length is, and what it counts: the message
// has offset + width + value + adjust bytes.
type LengthField struct {
	Offset, Width, Adjust int
	Little                bool
}

// LengthID tells where a message's id is. Width 0: there is none.
type LengthID struct{ Offset, Width int }

func requestSettings(s *Serve) settings {
	r := &s.Requests
	all := settings{
		{
			name: "pooling", category: requestFlags, def: "request",
			kind: choice(&r.Pooling, "request", "session"),
			usage: "lease a backend connection for each `request|session`. What keeps state on its connection " +
				"(a login, SASL, TLS, persistent headers, Thrift over HTTP) needs session, and is refused otherwise",
		},
		{
			name: "reply-timeout", category: requestFlags, def: "30s",
			kind:  duration(&r.ReplyTimeout, "no limit"),
			usage: "answer a request with an exception, and close its backend connection, if no reply came within `DURATION`",
		},
		{
			name: "reply-buffer", category: requestFlags, def: "256KiB",
			kind: size(&r.ReplyBuffer, 4<<10, 1<<30),
			usage: "read up to `SIZE` of replies ahead of a slow client, so that its backend connection is free " +
				"for others; the lease lasts beyond that",
		},
		{
			name: "buffer-memory", category: requestFlags, def: "256MiB",
			kind:  size(&r.BufferMemory, 1<<20, 1<<50),
			usage: "hold at most about `SIZE` of replies for all slow clients together",
		},
		{
			name: "idempotent-method", category: requestFlags, defText: "may be repeated",
			kind: list(&r.IdempotentMethods, methodName, methodTakes),
			usage: "send a call of the method `NAME` once more where its backend connection, used before, ended " +
				"without a reply: it may then have run twice. What provably was not delivered is always sent again",
		},
	}
	all = append(all, thriftSettings(r)...)
	return append(all, lengthSettings(r)...)
}

func thriftSettings(r *Requests) settings {
	return settings{
		{
			name: "thrift-transport", category: requestFlags, def: "auto",
			kind:  choice(&r.ThriftTransport, "auto", "framed", "unframed", "header"),
			usage: "take clients to use `TRANSPORT`; auto tells by the first bytes of each",
		},
		{
			name: "thrift-protocol", category: requestFlags, def: "auto",
			kind:  choice(&r.ThriftProtocol, "auto", "binary", "binary-old", "compact"),
			usage: "take clients to use `PROTOCOL`; auto tells by the first bytes of each",
		},
		{
			name: "max-frame", category: requestFlags, def: "16384000",
			kind:  size(&r.MaxFrame, 64, 1<<30-1),
			usage: "refuse messages whose length says more than `SIZE`; keep it at most at what the backends take",
		},
		{
			name: "max-message", category: requestFlags, def: "100MiB",
			kind:  size(&r.MaxMessage, 64, 1<<40),
			usage: "refuse unframed messages of more than `SIZE`",
		},
		{
			name: "check-frames", category: requestFlags, def: "on",
			kind: toggle(&r.CheckFrames),
			usage: "look into each frame of a client and refuse it unless it holds exactly one message: of two, the " +
				"second one's reply would meet another client's request, and fail it. --check-frames=false for " +
				"fbthrift's compact protocol with floats, which others read as another type",
		},
		{
			name: "oneway-method", category: requestFlags, defText: "may be repeated",
			kind: list(&r.OnewayMethods, methodName, methodTakes),
			usage: "await no reply to the method `NAME`, although its clients type it as a call, as every Go " +
				"client does",
		},
		{
			name: "learn-oneway", category: requestFlags, def: "on",
			kind: toggle(&r.LearnOneway),
			usage: "find out about such methods: a later call of the same client is answered and theirs never is. " +
				"--learn-oneway=false where clients send further calls while a server answers out of order",
		},
		{
			name: "oneway-quarantine", category: requestFlags, def: "50ms",
			kind: duration(&r.OnewayQuarantine, "none"),
			usage: "keep a connection from other clients for `DURATION` after a oneway call: a server answers it " +
				"if the method has a reply after all",
		},
	}
}

func lengthSettings(r *Requests) settings {
	return settings{
		{
			name: "length-field", category: requestFlags, def: "offset=0,width=4,endian=big,adjust=0",
			kind: parsed(&r.LengthField, parseLengthField, lengthFieldTakes),
			usage: "with --protocol length, read the length of a message at `SPEC`: the message has offset + " +
				"width + value + adjust bytes",
		},
		{
			name: "length-id", category: requestFlags, defText: "default: messages have no id",
			kind: parsed(&r.LengthID, parseLengthID, lengthIDTakes),
			usage: "with --protocol length, take the id that a reply repeats at `offset=N,width=N`: it is rewritten " +
				"and verified. Without it connections are not shared, but see --reuse trust",
		},
	}
}

const methodTakes = "a method's name, such as fire or Service:fire"

func methodName(v string) (string, error) {
	if v == "" || strings.ContainsFunc(v, func(c rune) bool { return c <= ' ' || c == ',' }) {
		return "", &valueError{given: v, takes: methodTakes}
	}
	return v, nil
}

const (
	lengthFieldTakes = "offset=0 to 1024, width=1, 2, 3, 4 or 8, endian=big or little, and adjust, joined by commas"
	lengthIDTakes    = "offset=0 to 1024 and width=1, 2, 3, 4 or 8, joined by a comma"
)

func parseLengthField(v string) (LengthField, error) {
	f := LengthField{Width: 4}
	err := parseSpec(v, lengthFieldTakes, map[string]func(string) bool{
		"offset": within(&f.Offset, 0, 1024),
		"width":  isWidth(&f.Width),
		"adjust": within(&f.Adjust, math.MinInt32, math.MaxInt32),
		"endian": func(v string) bool {
			f.Little = v == "little"
			return f.Little || v == "big"
		},
	})
	return f, err
}

func parseLengthID(v string) (LengthID, error) {
	f := LengthID{Width: 4}
	err := parseSpec(v, lengthIDTakes, map[string]func(string) bool{
		"offset": within(&f.Offset, 0, 1024),
		"width":  isWidth(&f.Width),
	})
	return f, err
}

// parseSpec reads key=value pairs that are joined by commas, each key once.
func parseSpec(v, takes string, keys map[string]func(string) bool) error {
	for pair := range strings.SplitSeq(v, ",") {
		key, value, _ := strings.Cut(pair, "=")
		read, ok := keys[key]
		if !ok || !read(value) {
			return &valueError{given: v, reason: fmt.Sprintf("%q cannot be", pair), takes: takes}
		}
		delete(keys, key)
	}
	return nil
}

func within(dst *int, lo, hi int) func(string) bool {
	return func(v string) bool {
		n, err := strconv.Atoi(v)
		*dst = n
		return err == nil && n >= lo && n <= hi
	}
}

func isWidth(dst *int) func(string) bool {
	return func(v string) bool {
		*dst, _ = strconv.Atoi(v)
		switch v {
		case "1", "2", "3", "4", "8":
			return true
		}
		return false
	}
}

// completeProtocol fills in what depends on the protocol, and refuses what does
// not go with it.
func (s *Serve) completeProtocol(ss settings) error {
	if s.Protocol != "raw" && !ss.find("min-idle").wasGiven() {
		s.MinIdle = 0
	}
	trusting := s.Protocol == "length" && s.Requests.LengthID.Width == 0
	switch {
	case s.Reuse == "quiet" && s.Protocol != "raw":
		return fmt.Errorf("%s: got %q beside --protocol %s; takes never there, since it is known where requests end",
			ss.source("reuse"), s.Reuse, s.Protocol)
	case s.Reuse == "trust" && !trusting:
		return fmt.Errorf("%s: got %q beside --protocol %s; takes trust only beside --protocol length without --length-id",
			ss.source("reuse"), s.Reuse, s.Protocol)
	}
	if err := s.Requests.checkLength(ss); s.Protocol == "length" && err != nil {
		return err
	}
	only := map[string][]string{
		"thrift": {"thrift-transport", "thrift-protocol", "max-message", "check-frames", "oneway-method", "learn-oneway", "oneway-quarantine"},
		"length": {"length-field", "length-id"},
	}
	for protocol, names := range only {
		if err := s.belongs(ss, names, protocol); err != nil {
			return err
		}
	}
	if s.Protocol == "raw" {
		return s.belongs(ss, []string{"pooling", "reply-timeout", "reply-buffer", "buffer-memory", "idempotent-method", "max-frame"}, "thrift or length")
	}
	return nil
}

// checkLength compares where the length and the id are.
func (r *Requests) checkLength(ss settings) error {
	f, id := r.LengthField, r.LengthID
	end, idEnd := f.Offset+f.Width, id.Offset+id.Width
	switch {
	case id.Width > 0 && id.Offset < end && f.Offset < idEnd:
		return fmt.Errorf("%s: got bytes %d to %d; takes bytes beside those of the length, %d to %d",
			ss.source("length-id"), id.Offset, idEnd-1, f.Offset, end-1)
	case r.MaxFrame < int64(max(end, idEnd)):
		return fmt.Errorf("%s: got %d; takes at least the %d bytes up to the end of --length-field and --length-id",
			ss.source("max-frame"), r.MaxFrame, max(end, idEnd))
	}
	return nil
}

// belongs refuses flags of another protocol.
func (s *Serve) belongs(ss settings, names []string, protocol string) error {
	for _, name := range names {
		if f := ss.find(name); s.Protocol != protocol && f.wasGiven() {
			return fmt.Errorf("%s beside --protocol %s; takes --protocol %s", f.source, s.Protocol, protocol)
		}
	}
	return nil
}
