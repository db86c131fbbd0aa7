package admin

import (
	"time"

	"forebay/balance"
	"forebay/balance/health"
	"forebay/proxy"
)

// Pools is what GET /api/pools answers: the proxy at one moment, in the words of its
// log and metrics. This file is the only one that knows proxy.Stats.
type Pools struct {
	Sessions int              `json:"sessions"` // now
	Ended    map[string]int64 `json:"ended"`    // sessions, by reason
	Requests int64            `json:"requests"`
	Errors   int64            `json:"errors"`  // requests answered with an exception of the proxy's, or lost
	Faults   map[string]int64 `json:"faults"`  // connections not kept, by fault
	Desyncs  int64            `json:"desyncs"` // of these, those that should never happen
	Queue    Queue            `json:"queue"`
	Draining bool             `json:"draining"`
	Balance  string           `json:"balance"` // how a backend is chosen: a name that --balance takes
	Backends []Backend        `json:"backends"`
}

// Queue is what GET /api/queue answers.
type Queue struct {
	Length   int     `json:"length"` // clients or requests that wait now
	Paused   bool    `json:"paused"`
	PausedMS float64 `json:"paused_ms"` // for how long; 0 while not paused
	Waits    int64   `json:"waits"`     // since the start
	WaitMS   float64 `json:"wait_ms"`   // how long these took, in all
	MaxMS    float64 `json:"max_ms"`    // the longest
}

// Backend is one backend of Pools. The counts are since the backend was added.
type Backend struct {
	Name   string `json:"name"`
	State  string `json:"state"` // up, down, drain, maintain or removed
	Why    string `json:"why"`   // of the state; may be empty
	Up     bool   `json:"up"`    // may be picked, as far as health goes
	Weight int    `json:"weight"`
	Max    int    `json:"max"`
	Backup bool   `json:"backup"` // used only while no other backend is up

	// Connections now, by state. Their sum is at most Max, or on its way there
	// after Max was lowered.
	Leased  int `json:"leased"`
	Idle    int `json:"idle"`
	Dialing int `json:"dialing"`
	Closing int `json:"closing"`

	Sessions   int64            `json:"sessions"`
	Requests   int64            `json:"requests"`
	Results    map[string]int64 `json:"results"` // requests, by result
	BytesUp    int64            `json:"bytes_up"`
	BytesDown  int64            `json:"bytes_down"`
	Dials      int64            `json:"dials"`
	Dialed     int64            `json:"dialed"`      // dials that gave a connection
	DialErrors int64            `json:"dial_errors"` // dials that failed
	Reused     int64            `json:"reused"`      // leases that found a connection ready
	Closes     map[string]int64 `json:"closes"`      // connections, by reason
	LastError  string           `json:"last_error"`  // of a dial or a check; may be empty

	Health Health `json:"health"`
}

// Health is what the checks of a backend have found.
type Health struct {
	State        string        `json:"state"`    // up or down
	SinceMS      float64       `json:"since_ms"` // for how long
	Why          string        `json:"why"`      // it is down; empty while it is up
	Failures     int           `json:"failures"` // in a row, that count towards fall
	Needed       int           `json:"needed"`   // checks that must still succeed while it is down
	Flaps        int           `json:"flaps"`
	Checks       int64         `json:"checks"`
	FailedChecks int64         `json:"failed_checks"`
	Skipped      int64         `json:"skipped"`       // checks for which there was no slot
	ClientFaults int64         `json:"client_faults"` // clients that the backend did not serve
	LastCheckMS  float64       `json:"last_check_ms"` // how long it took
	History      []HealthEvent `json:"history"`       // the oldest first
}

// HealthEvent is one change of a backend's health.
type HealthEvent struct {
	AgoMS float64 `json:"at_ms_ago"`
	Up    bool    `json:"up"`
	Why   string  `json:"why"`
}

// Session is one session of what GET /api/sessions answers.
type Session struct {
	ID        uint64  `json:"id"`
	Client    string  `json:"client"`
	Backend   string  `json:"backend"` // of its lease; empty without one
	State     string  `json:"state"`
	AgeMS     float64 `json:"age_ms"`
	BytesUp   int64   `json:"bytes_up"`
	BytesDown int64   `json:"bytes_down"`
	Requests  int64   `json:"requests"`
}

// pools returns the proxy as it is now.
func (a *Admin) pools() Pools {
	s := a.cfg.Proxy.Stats()
	p := Pools{
		Sessions: s.Clients,
		Ended:    withAll(s.Ended, sessionReasons),
		Requests: s.Requests,
		Errors:   s.Errors,
		Faults:   withAll(s.Faults, nil),
		Desyncs:  s.Faults["wrong_reply"] + s.Faults["stray_bytes"],
		Queue:    a.queueOf(s),
		Draining: a.draining.Load(),
		Balance:  string(s.Balance),
		Backends: make([]Backend, len(s.Backends)),
	}
	for i, b := range s.Backends {
		p.Backends[i] = backendOf(b)
	}
	return p
}

func (a *Admin) queue() Queue { return a.queueOf(a.cfg.Proxy.Stats()) }

func (a *Admin) queueOf(s proxy.Stats) Queue {
	q := Queue{Length: s.Waiting, Waits: s.Queued, WaitMS: ms(s.QueueSum), MaxMS: ms(s.QueueMax)}
	if !s.Paused.IsZero() {
		q.Paused, q.PausedMS = true, ms(time.Since(s.Paused))
	}
	return q
}

func backendOf(b proxy.BackendStats) Backend {
	slots := b.Load.Slots
	return Backend{
		Name:       b.String(),
		State:      b.Status,
		Why:        b.Health.Why,
		Up:         b.Load.Out&balance.Down == 0,
		Weight:     b.Load.Weight,
		Max:        b.Load.Max,
		Backup:     b.Load.Backup,
		Leased:     slots[balance.Leased],
		Idle:       slots[balance.Idle],
		Dialing:    slots[balance.Dialing] + slots[balance.DialingAhead] + slots[balance.Checking],
		Closing:    slots[balance.Closing] + slots[balance.Expiring],
		Sessions:   b.Sessions,
		Requests:   b.Requests,
		Results:    withAll(b.Results, nil),
		BytesUp:    b.BytesUp,
		BytesDown:  b.BytesDown,
		Dials:      b.Pool.Dials,
		Dialed:     b.Pool.Dialed,
		DialErrors: b.Pool.DialErrors,
		Reused:     b.Pool.Ready,
		Closes:     withAll(b.Pool.Closed, closeReasons),
		LastError:  b.Health.LastError,
		Health:     healthOf(b.Health),
	}
}

func healthOf(s health.Snapshot) Health {
	h := Health{
		State:        "up",
		SinceMS:      ms(time.Since(s.Since)),
		Why:          s.Why,
		Failures:     s.Failures,
		Needed:       s.Needed,
		Flaps:        s.Flaps,
		Checks:       s.Checks,
		FailedChecks: s.FailedChecks,
		Skipped:      s.Skipped,
		ClientFaults: s.ClientFaults,
		LastCheckMS:  ms(s.Took),
		History:      []HealthEvent{}, // none is [] in JSON, not null
	}
	if !s.Up {
		h.State = "down"
	}
	for _, c := range s.History {
		h.History = append(h.History, HealthEvent{ms(time.Since(c.At)), c.Up, c.Why})
	}
	return h
}

// sessions returns at most limit sessions, of one backend unless it is empty.
func (a *Admin) sessions(limit int, backend string) []Session {
	all := limit
	if backend != "" {
		all = 0
	}
	found := []Session{} // none is [] in JSON, not null
	for _, s := range a.cfg.Proxy.Sessions(all) {
		if len(found) < limit && (backend == "" || s.Backend == backend) {
			found = append(found, Session{ID: s.ID, Client: s.Client, Backend: s.Backend, State: s.State.String(), AgeMS: ms(s.Age),
				BytesUp: s.BytesUp, BytesDown: s.BytesDown, Requests: s.Requests})
		}
	}
	return found
}

// withAll returns counts with a zero for each name that it has not: what is counted
// for the first time has then had a value before, which rates need.
func withAll(counts map[string]int64, names []string) map[string]int64 {
	all := make(map[string]int64, len(names)+len(counts))
	for _, name := range names {
		all[name] = 0
	}
	for name, n := range counts {
		all[name] = n
	}
	return all
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
