package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// clientTimeout bounds one request of a Client.
const clientTimeout = 10 * time.Second

// maxAnswer bounds what a Client reads, in bytes.
const maxAnswer = 64 << 20

// A Client asks the admin listener of a forebay, and has it make changes. Each call is
// one connection, and takes at most 10 seconds. The errors tell which listener it was,
// and what it said.
type Client struct {
	address string
	token   Token
	http    http.Client
}

// NewClient returns a client of the listener at addr. The zero Token is enough for
// reading, and on a Unix socket.
func NewClient(network, addr string, token Token) *Client {
	name := addr
	if network == "unix" {
		name = "unix:" + addr
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	return &Client{address: name, token: token, http: http.Client{
		Timeout:   clientTimeout,
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
		// The token is for this listener alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Pools returns what GET /api/pools answers.
func (c *Client) Pools(ctx context.Context) (p Pools, err error) {
	return p, c.do(ctx, "GET", "/api/pools", nil, &p)
}

// Queue returns what GET /api/queue answers.
func (c *Client) Queue(ctx context.Context) (q Queue, err error) {
	return q, c.do(ctx, "GET", "/api/queue", nil, &q)
}

// Sessions returns at most limit sessions, of one backend unless it is empty.
func (c *Client) Sessions(ctx context.Context, limit int, backend string) (s []Session, err error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if backend != "" {
		q.Set("backend", backend)
	}
	return s, c.do(ctx, "GET", "/api/sessions?"+q.Encode(), nil, &s)
}

// Add adds a backend, written as --backend has it.
func (c *Client) Add(ctx context.Context, backend string) error {
	return c.do(ctx, "POST", "/api/backends", addBody{backend}, nil)
}

// Remove removes a backend.
func (c *Client) Remove(ctx context.Context, name string) error {
	return c.do(ctx, "DELETE", backendPath(name), nil, nil)
}

// SetState sets the state of a backend: "ready", "drain" or "maintain".
func (c *Client) SetState(ctx context.Context, name, state string) error {
	return c.do(ctx, "POST", backendPath(name)+"/"+state, nil, nil)
}

// SetWeight sets the weight of a backend.
func (c *Client) SetWeight(ctx context.Context, name string, n int) error {
	return c.do(ctx, "POST", backendPath(name)+"/weight", weightBody{&n}, nil)
}

// SetMax sets the max of a backend.
func (c *Client) SetMax(ctx context.Context, name string, n int) error {
	return c.do(ctx, "POST", backendPath(name)+"/max", maxBody{&n}, nil)
}

// Pause has clients wait in the queue until Resume.
func (c *Client) Pause(ctx context.Context) error { return c.do(ctx, "POST", "/api/pause", nil, nil) }

// Resume ends what Pause began.
func (c *Client) Resume(ctx context.Context) error { return c.do(ctx, "POST", "/api/resume", nil, nil) }

// Disconnect ends a session.
func (c *Client) Disconnect(ctx context.Context, id uint64) error {
	return c.do(ctx, "DELETE", "/api/sessions/"+strconv.FormatUint(id, 10), nil, nil)
}

func backendPath(name string) string { return "/api/backends/" + url.PathEscape(name) }

// do sends a request with body as JSON, and reads the answer into into. Either may be
// nil: none.
func (c *Client) do(ctx context.Context, method, path string, body, into any) error {
	r, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	res, err := c.http.Do(r)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // it repeats the URL, which is made up
		}
		return fmt.Errorf("cannot reach the admin listener at %s: %w", c.address, err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case err != nil:
		return fmt.Errorf("the admin listener at %s: %w", c.address, err)
	case res.StatusCode/100 != 2:
		return fmt.Errorf("the admin listener at %s: %s", c.address, said(res.Status, answer))
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("the admin listener at %s answered what is not forebay's: %w", c.address, err)
	}
	return nil
}

// request makes a request. The host is one that every listener takes: the check of it
// is about browsers.
func (c *Client) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token.given() {
		r.Header.Set("Authorization", "Bearer "+c.token.secret)
	}
	return r, nil
}

// said returns the error of an answer, or its status where there is none.
func said(status string, answer []byte) string {
	var f failure
	json.Unmarshal(answer, &f) // what is no JSON is none of forebay's
	return cmp.Or(f.Error, status)
}
