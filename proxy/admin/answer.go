package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"forebay/proxy"
)

// A statusError is an error that chooses the status of the answer.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

func badRequest(format string, args ...any) error {
	return statusError{fmt.Errorf(format, args...), http.StatusBadRequest}
}

// status returns the status of an answer that is err.
func status(err error) int {
	if e, ok := errors.AsType[statusError](err); ok {
		return e.status
	}
	switch {
	case errors.Is(err, proxy.ErrNoBackend), errors.Is(err, proxy.ErrNoSession):
		return http.StatusNotFound
	case errors.Is(err, proxy.ErrExists):
		return http.StatusConflict
	case errors.Is(err, proxy.ErrInvalid):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// failure is the JSON of an error.
type failure struct {
	Error string `json:"error"`
}

// answer writes v as JSON. What the client misses of it is its own affair.
func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, code int, err error) { answer(w, code, failure{err.Error()}) }

// decode reads the JSON body of a request into dst, of which form is an example. It
// refuses another content type, another object, and anything behind it.
func decode(r *http.Request, dst any, form string) error {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return statusError{fmt.Errorf("the content type is %.100q; takes application/json", r.Header.Get("Content-Type")),
			http.StatusUnsupportedMediaType}
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(dst)
	if err == nil {
		if err = end(d); err == nil {
			return nil
		}
	}
	return bodyError(err, form)
}

var errMore = errors.New("more follows the object")

// end reports whether the body ends where the object does.
func end(d *json.Decoder) error {
	switch _, err := d.Token(); {
	case err == io.EOF:
		return nil
	case tooLarge(err):
		return err
	}
	return errMore
}

func tooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}

func bodyError(err error, form string) error {
	if limit, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return statusError{fmt.Errorf("the body is too long; takes at most %d bytes: %s", limit.Limit, form), http.StatusRequestEntityTooLarge}
	}
	reason := strings.TrimPrefix(err.Error(), "json: ")
	if errors.Is(err, io.EOF) {
		reason = "it is empty"
	}
	return badRequest("the body is not what it should be: %s; takes %s", reason, form)
}

// empty refuses a body where none is taken.
func empty(r *http.Request) error {
	switch n, err := io.ReadFull(r.Body, make([]byte, 1)); {
	case n > 0:
		return badRequest("there is a body; takes none")
	case err != io.EOF:
		return badRequest("the body cannot be read: %v; takes none", err)
	}
	return nil
}
