// Package config is what operators set: the flags and environment variables of
// forebay and its commands, checked, with the defaults filled in.
//
// Run parses the arguments, checks them and calls one of the actions with a
// plain struct. A value comes from the flag, else (serving, and some of ctl's and top's) from the
// environment, else from the default, and goes through the same check wherever
// it came from, so a wrong one reads alike: at most two lines that name the
// flag or variable, what was given and what it takes, and exit status 2.
//
// The package decides nothing about how the values are used: it opens no file
// and no socket, resolves no name and starts no goroutine. It does not import
// the rest of forebay; main translates its structs for the other packages. Only
// this package knows that the command line is read by urfave/cli.
package config

import (
	"context"
	"time"
)

// MinIdleAuto is the Serve.MinIdle that leaves the number of virgin connections
// kept ready to the recent arrival rate and dial time.
const MinIdleAuto = -1

// Serve is what `forebay` takes. Run hands it over complete: every field is set,
// checked and within the limits that the flag's error message states.
type Serve struct {
	// Listen is where clients connect. An empty host is every address of the
	// machine, port 0 any free port.
	Listen Address

	// MaxClients bounds the sessions at once. Zero: as many as the limit on
	// descriptors allows.
	MaxClients int

	// Backends is never empty and without duplicates. Each has its Max (from
	// MaxConns where it named none) and its Weight.
	Backends []Backend

	// MaxConns is the Max of a backend that names none.
	MaxConns int

	// Balance is how a backend is chosen: the name of one of package balance's
	// strategies.
	Balance string

	// DialTimeout bounds one dial; above 0.
	DialTimeout time.Duration

	// DialParallel bounds, per backend, the refills under way at once, and the
	// dials for clients while the backend recovers; at least 1.
	DialParallel int

	// MinIdle is how many virgin connections are kept dialed ahead per backend:
	// MinIdleAuto, or a number that is at most each backend's Max. Zero: none.
	MinIdle int

	// VirginTimeout and IdleTimeout are how long a pooled connection may lie
	// idle, before and after its first client; above 0.
	VirginTimeout, IdleTimeout time.Duration

	// MaxLifetime is the age at which a connection is no longer pooled, before
	// jitter. Zero: no limit.
	MaxLifetime time.Duration

	// Reuse is "never", "quiet" or "trust"; ReuseQuiet, above 0, matters with
	// "quiet".
	Reuse      string
	ReuseQuiet time.Duration

	// AcquireTimeout is the longest wait for a lease; above 0.
	AcquireTimeout time.Duration

	// Queue bounds the clients that wait at once, over all backends. Zero:
	// nobody waits.
	Queue int

	// FirstByteWait is how long a client is held without a lease until its
	// first byte. Zero: it leases at once.
	FirstByteWait time.Duration

	// AbortOnFin takes a client that half-closes while it waits as gone.
	AbortOnFin bool

	// SessionIdleTimeout ends a session without a byte either way. Zero: never.
	SessionIdleTimeout time.Duration

	// HalfCloseTimeout ends a session without a byte after one side's FIN;
	// above 0.
	HalfCloseTimeout time.Duration

	// TCPUserTimeout is how long sent bytes may stay unacknowledged, on both
	// sides. Zero leaves it to the kernel; otherwise 1 ms to 576 h.
	TCPUserTimeout time.Duration

	// KeepAlive is the time between TCP keep-alive probes, on both sides. Zero:
	// none; otherwise 1 s to 9 h.
	KeepAlive time.Duration

	// DrainTimeout is how long sessions may go on after a signal. Zero: they
	// are cut at once.
	DrainTimeout time.Duration

	// DrainDelay is how long clients are still taken after a signal, while the
	// proxy says that it is not ready. Zero: not at all.
	DrainDelay time.Duration

	// PauseTimeout is how long the time of clients that wait stands still while the
	// proxy is paused. Zero: it runs on.
	PauseTimeout time.Duration

	// Health is how it is found out which backends are down.
	Health Health

	// Admin is the listener for operators.
	Admin Admin

	// Protocol is "raw", "thrift" or "length".
	Protocol string

	// Requests matters with the protocols that know requests.
	Requests Requests

	// Engine is "auto", "uring", "epoll" or "net"; Workers is how many loops the first
	// three have.
	Engine  string
	Workers int

	// LogLevel is "debug", "info", "warn" or "error".
	LogLevel string

	// LogFormat is "auto" (console on a terminal, else json), "console" or
	// "json".
	LogFormat string
}

// Demo is what `forebay demo` takes.
type Demo struct {
	// Listen is where the proxy listens. The zero Address: a free loopback port.
	Listen Address

	// Duration is how long the load runs; above 0.
	Duration time.Duration

	// Keep goes on serving after the load, until interrupted.
	Keep bool

	// Balance is as in Serve.
	Balance string

	// Clients is how many run at once, at least 1.
	Clients int

	// RequestsPerClient is how many requests each client sends before it
	// connects anew. Zero: the connection is kept.
	RequestsPerClient int

	// Protocol is "raw" or "thrift".
	Protocol string

	// LogLevel and LogFormat are as in Serve.
	LogLevel, LogFormat string
}

// Echo is what `forebay echo` takes.
type Echo struct {
	// Listen is never empty; an empty host and port 0 are as in Serve.
	Listen []Address

	// Delay is the wait before each reply, Late the wait between the two halves
	// of one. Zero: none.
	Delay, Late time.Duration

	// Greet is sent to each client before it sends anything. Empty: nothing is.
	Greet string

	// CloseAfter and ResetAfter are the bytes of a connection that are answered
	// before it is closed, or reset. Zero: never.
	CloseAfter, ResetAfter int64

	// Silent reads and never answers.
	Silent bool

	// Protocol is "raw" or "thrift". What follows is unset with "raw".
	Protocol string

	// WrongID, Twice, Half, Early and After spoil every so manieth reply each.
	// Zero: none.
	WrongID, Twice, Half, Early, After int64

	// AnswerOneway replies to oneway calls.
	AnswerOneway bool
}

// Load is what `forebay load` takes.
type Load struct {
	// Target is what the clients connect to.
	Target Address

	// Clients is how many run at once, at least 1.
	Clients int

	// Size is the bytes of each request and reply, at least 16. With thrift, it
	// is those of the text in a call, at least 32.
	Size int

	// Duration and Requests, the number in all, say when the load ends: one of
	// them is zero and does not count.
	Duration time.Duration
	Requests int64

	// RequestsPerClient is the requests of one connection. Zero: the connection
	// is kept.
	RequestsPerClient int64

	// Rate is the requests planned per second, over all clients. Zero: each
	// client sends as soon as it has its reply.
	Rate float64

	// Think is how long each client waits between its requests. Zero: not at all.
	Think time.Duration

	// Timeout is the longest wait for a connection, a greeting or a reply; above 0.
	Timeout time.Duration

	// Protocol is "raw" or "thrift". ThriftTransport ("framed", "unframed" or
	// "header"), ThriftProtocol ("binary" or "compact") and Method ("echo" or
	// "mix") matter with "thrift".
	Protocol, ThriftTransport, ThriftProtocol, Method string

	// Skip is the bytes of greeting that each connection ignores.
	Skip int

	// JSON prints one object instead of a table.
	JSON bool
}

// Actions is what the commands do. All are required. An error that has a
// method ExitCode() int chooses the exit status, any other makes it 1; an empty
// text prints nothing.
type Actions struct {
	Serve    func(context.Context, Serve) error
	Demo     func(context.Context, Demo) error
	Echo     func(context.Context, Echo) error
	Load     func(context.Context, Load) error
	Ctl      func(context.Context, Ctl) error
	Top      func(context.Context, Top) error
	Simulate func(context.Context, Simulate) error
}

// Defaults returns what Serve holds where nothing was given. It has no Backends.
func Defaults() Serve {
	var s Serve
	unset := func(string) string { return "" }
	if err := serveSettings(&s).resolve(unset); err != nil {
		panic(err) // a default of ours that our own check refuses
	}
	return s
}
