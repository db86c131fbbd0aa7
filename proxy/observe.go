package proxy

import "time"

// An Observer is told how long things took, as they end. Everything that can be
// counted is in Stats instead, which costs the data path nothing.
//
// Its methods are called from any goroutine, on the path of the bytes: they must not
// wait.
type Observer interface {
	// QueueWaited is told of each wait in the queue that ended, however it ended.
	QueueWaited(time.Duration)

	// Requests returns what is told of each request of a backend whose reply was
	// read whole: the time from its lease to the reply's end. The server asks once
	// for each backend that it gets and keeps the answer, so that no request costs
	// a search for a name. A backend that is added again when it was gone is asked
	// for again. The slots are locked then: it must not call the server.
	Requests(backend string) func(time.Duration)
}
