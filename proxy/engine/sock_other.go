//go:build !linux

package engine

import (
	"net"
	"syscall"
)

// set does nothing: the system's defaults stand.
func (cfg Config) set(string, syscall.RawConn) error { return nil }

// rawIO is Linux's way to a socket; elsewhere connections are read and written
// by package net, and nothing is known of them while nobody reads.
type rawIO struct{}

func newRawIO(net.Conn) *rawIO { return nil }

func (*rawIO) read(int, *turns) (*buffer, int, error)         { panic("unreachable") }
func (*rawIO) readReady(int) (*buffer, int, error)            { panic("unreachable") }
func (*rawIO) writeSome([]byte) (int, error)                  { panic("unreachable") }
func (*rawIO) writeReady([]byte) (int, error)                 { panic("unreachable") }
func (*rawIO) write([]byte, func(int), func(), *turns) error  { panic("unreachable") }
func (*rawIO) wait(func(bool, error) bool)                    { panic("unreachable") }
func (*rawIO) peek() (bool, error)                            { panic("unreachable") }
func (*rawIO) failure() error                                 { panic("unreachable") }
func (*rawIO) unacked() int                                   { panic("unreachable") }
func (*rawIO) tcpState() (closed bool, acked uint64, ok bool) { panic("unreachable") }
