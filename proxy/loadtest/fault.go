package loadtest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
)

// A Fault sums up the faults of one kind.
type Fault struct {
	// Kind is where it happened and what, such as "reply_timeout"; the kinds
	// of mismatches start with "mismatch_".
	Kind string

	// Count is how many there were.
	Count int64

	// Example is the text of the first one.
	Example string
}

// The stages of a connection, the first half of an error's kind.
const (
	stageDial     = "dial"
	stageGreeting = "greeting"
	stageWrite    = "write"
	stageReply    = "reply"
	stageClose    = "close"
)

// The kinds of mismatches.
const (
	otherClient  = "mismatch_other_client"
	otherRequest = "mismatch_other_request"
	altered      = "mismatch_altered"
	extraBytes   = "mismatch_extra_bytes"
	wrongID      = "mismatch_sequence_id"
	wrongMethod  = "mismatch_method"
	onewayReply  = "mismatch_oneway_reply"
)

// A fault is one thing that went wrong. Abandoned says that nothing did: the
// run was cancelled and did not wait. Usable says that the connection can take
// the next request.
type fault struct {
	kind      string
	text      string
	mismatch  bool
	abandoned bool
	usable    bool
}

// causes are looked through in order; the first that fits names the error.
var causes = [...]struct {
	err  error
	name string
}{
	{io.EOF, "eof"},
	{os.ErrDeadlineExceeded, "timeout"},
	{context.DeadlineExceeded, "timeout"},
	{syscall.ETIMEDOUT, "timeout"},
	{syscall.ECONNRESET, "reset"},
	{syscall.ENOTCONN, "reset"}, // what shutdown says after a RST
	{syscall.EPIPE, "broken_pipe"},
	{syscall.ECONNREFUSED, "refused"},
	{syscall.ENOENT, "no_socket"},
	{syscall.EADDRNOTAVAIL, "no_free_port"},
	{syscall.EMFILE, "no_free_file"},
	{syscall.EAGAIN, "backlog_full"}, // a Unix listener's
}

func causeOf(err error) string {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return "other"
}

// faults counts faults by kind.
type faults struct {
	mu     sync.Mutex
	first  string
	byKind map[string]*Fault
}

func (fs *faults) add(f *fault) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.byKind == nil {
		fs.byKind = make(map[string]*Fault)
		fs.first = f.text
	}
	sum := fs.byKind[f.kind]
	if sum == nil {
		sum = &Fault{Kind: f.kind, Example: f.text}
		fs.byKind[f.kind] = sum
	}
	sum.Count++
}

// list returns the faults in the order of their kinds, and the text of the
// first one.
func (fs *faults) list() (byKind []Fault, first string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.byKind {
		byKind = append(byKind, *f)
	}
	slices.SortFunc(byKind, func(a, b Fault) int { return cmp.Compare(a.Kind, b.Kind) })
	return byKind, fs.first
}
