//go:build !linux

package engine

import (
	"errors"
	"net"
	"testing"
)

func outQueue(t testing.TB, _ net.Conn) int           { t.Skip("needs Linux"); return 0 }
func inQueue(t testing.TB, _ net.Conn) int            { t.Skip("needs Linux"); return 0 }
func setSendBuffer(t testing.TB, _ Conn, _ int)       { t.Skip("needs Linux") }
func stateLost(testing.TB) func(testing.TB)           { return func(testing.TB) {} }
func awaitAcked(t testing.TB, _ net.Conn)             { t.Skip("needs Linux") }
func testOptions(t *testing.T, _ func(Config) Engine) { t.Skip("needs Linux") }

func listenAgain(int, int) error { return errors.ErrUnsupported }

func refusal() error { return nil }
