package proxy

import (
	"errors"
	"fmt"

	"forebay/balance"
	"forebay/pool"
	"forebay/proxy/engine"
)

// A Reason tells why a session ended. Each session ends with exactly one.
type Reason int

// The reasons, from the ordinary to the faults.
const (
	Done             Reason = iota // both sides finished
	ClientLeft                     // the client went before it was served
	ClientReset                    // the client reset its connection
	BackendReset                   // the backend reset its
	ClientFailed                   // TCP gave up on the client
	BackendFailed                  // TCP gave up on the backend
	IdleTimeout                    // no byte either way for the session idle timeout
	HalfCloseTimeout               // no byte for the half-close timeout after one side's FIN
	QueueFull                      // refused: too many clients waited
	AcquireTimeout                 // refused: no lease within the acquire timeout
	NoBackend                      // refused: every backend is down or failed this client's dial
	LocalFault                     // refused: this machine could not dial (descriptors, ports, memory)
	Refused                        // refused: the proxy is shutting down
	ProtocolError                  // the client sent what is no request
	BrokenReply                    // the backend ended, or failed, in the middle of a reply
	BackendClosed                  // the backend closed the connection of a session between two requests
	Drained                        // the proxy shut down between two requests
	Cut                            // cut at the drain timeout, or by a second signal
	Disconnected                   // its operator ended it
	BackendDown                    // its backend went down, and such sessions are to be cut
	numReasons
)

var reasonNames = [numReasons]string{"done", "client_left", "client_reset", "backend_reset", "client_failed",
	"backend_failed", "idle_timeout", "half_close_timeout", "queue_full", "acquire_timeout", "no_backend",
	"local_fault", "shutdown", "protocol_error", "broken_reply", "backend_closed", "drained", "cut", "disconnected", "backend_down"}

// String returns the name of the reason, as logs have it.
func (r Reason) String() string { return reasonNames[r] }

// ordinary reports whether the session ended as clients end sessions. What a
// client does is no fault.
func (r Reason) ordinary() bool {
	return r == Done || r == ClientLeft || r == ClientReset || r == Drained
}

// The causes for which a client that waits gets no lease, and errCut, for which a
// session ends that has one.
var (
	errQueueFull      = errors.New("the queue is full")
	errAcquireTimeout = errors.New("no backend connection within the acquire timeout")
	errClientLeft     = errors.New("the client left")
	errShutdown       = errors.New("the proxy is shutting down")
	errCut            = errors.New("cut at the end of the drain")
	errDisconnected   = errors.New("disconnected by the operator")
	errBackendDown    = errors.New("its backend is down")
)

// What keeps the backends from serving, where it is no failed dial.
var (
	errDrained  = errors.New("drained by the operator")
	errNoneLeft = errors.New("there is none")
)

// noBackendError is balance.ErrNone with what is known about the backends.
type noBackendError struct{ last error }

func (e noBackendError) Error() string {
	if e.last == nil {
		return "no backend is up"
	}
	return fmt.Sprintf("no backend is up: %v", e.last)
}

func (e noBackendError) Is(target error) bool { return target == balance.ErrNone }

// refusal returns the reason of a session that got no lease because of err.
func refusal(err error) Reason {
	switch {
	case errors.Is(err, errClientLeft):
		return ClientLeft
	case errors.Is(err, errQueueFull):
		return QueueFull
	case errors.Is(err, errShutdown):
		return Refused
	case errors.Is(err, errCut):
		return Cut
	case errors.Is(err, errDisconnected):
		return Disconnected
	case errors.Is(err, errBackendDown):
		return BackendDown
	case errors.Is(err, balance.ErrNone):
		return NoBackend
	case pool.IsLocal(err):
		return LocalFault
	default:
		return AcquireTimeout
	}
}

// ending returns the reason of a session that was relayed.
func ending(end engine.End) Reason {
	switch end {
	case engine.Finished, engine.Quiet:
		return Done
	case engine.ClientReset:
		return ClientReset
	case engine.BackendReset, engine.Stale:
		return BackendReset
	case engine.ClientFailed:
		return ClientFailed
	case engine.BackendFailed:
		return BackendFailed
	case engine.IdleTimeout:
		return IdleTimeout
	case engine.HalfCloseTimeout:
		return HalfCloseTimeout
	default:
		return Cut
	}
}
