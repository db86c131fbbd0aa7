// Package loadtest is the load test that forebay brings along: an echo server
// and a load generator that checks every byte of every reply.
//
// The load generator is made to find a proxy's worst fault, a reply that
// reaches the wrong client. Every request carries the number of its client and
// its own; a reply that belongs to anything else is counted as a mismatch, and
// so is a byte too many, even one that only arrives when the connection is
// being closed. Everything else that goes wrong is an error, counted by kind.
//
// The echo server is the other end of such a test. Besides answering it can be
// slow, silent, speak first, or end its connections early, so that a proxy can
// be tested against a backend that misbehaves.
//
// The package logs nothing and keeps nothing global; all goroutines end before
// the call that started them returns.
package loadtest
