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
// Both speak raw bytes, or Thrift: then each request is a call of the echo
// service, whose methods between them use all that the protocol has, and of a
// reply the sequence id, the method and the type of message are checked too. A
// proxy that shares out calls is wrong in more ways than one that shares out
// connections, and so the server can be: it answers oneways, answers twice, in
// part, too early or to another sequence id. It tells the form of each call,
// transport and protocol, from its first bytes, and answers in that form.
// Values are encoded and decoded by the Apache library.
//
// The package logs nothing and keeps nothing global; all goroutines end before
// the call that started them returns.
package loadtest
