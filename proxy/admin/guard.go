package admin

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// hardened are what every answer says to a browser: take it as what it is, keep
// nothing, show it in no other page and let it load nothing.
var hardened = map[string]string{
	"Cache-Control":                "no-store",
	"Content-Security-Policy":      "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
}

// guard refuses, before anything else is looked at, what a page of somebody else's can
// have an operator's browser send.
func (a *Admin) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range hardened {
			w.Header().Set(name, value)
		}
		err := a.checkHost(r)
		if err == nil {
			err = checkOrigin(r)
		}
		if err != nil {
			fail(w, http.StatusForbidden, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkHost refuses a name that is not the listener's: somebody may have made a name
// of theirs point here, so that their page and this listener pass for one (DNS
// rebinding). A browser names the host always, and cannot reach a Unix socket.
func (a *Admin) checkHost(r *http.Request) error {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if r.Host == "" || local != nil && local.Network() == "unix" {
		return nil
	}
	host := hostname(r.Host)
	if isLoopback(host) || isAddress(host, local) {
		return nil
	}
	if slices.ContainsFunc(a.cfg.Hosts, func(h string) bool { return strings.EqualFold(hostname(h), host) }) {
		return nil
	}
	return fmt.Errorf("the Host header has %q; takes a loopback name, the listener's address or a name given by --admin-host", r.Host)
}

// hostname returns host without a port, brackets or a final dot.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.Trim(host, "[]"), ".")
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// isAddress reports whether host is the address that the request arrived at, which is
// the listener's, or one of the machine's where it listens on all.
func isAddress(host string, local net.Addr) bool {
	tcp, ok := local.(*net.TCPAddr)
	if !ok {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap() == tcp.AddrPort().Addr().Unmap()
}

// checkOrigin refuses what another origin's page sends. Programs send neither header.
func checkOrigin(r *http.Request) error {
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none": // none: typed by the user
	default:
		return fmt.Errorf("a page of another origin sent this (Sec-Fetch-Site: %.20q); takes same-origin, or no such header", site)
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil
	}
	if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
		return fmt.Errorf("a page of another origin sent this (Origin: %.100q); takes http://%s, or no such header", origin, r.Host)
	}
	return nil
}

var (
	errNoToken = errors.New("changes are off: they need a token, which --admin-token-file gives the listener, " +
		"or a listener on a Unix socket of mode 0600")
	errWrongToken = errors.New("changes need the header Authorization: Bearer, with the token of --admin-token-file")
)

// authorize returns 0, or the status and the error with which a change is refused.
func (a *Admin) authorize(r *http.Request, private bool) (int, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case private:
		return 0, nil
	case !a.cfg.Token.given():
		return http.StatusForbidden, errNoToken
	case !strings.EqualFold(scheme, "Bearer") || !a.cfg.Token.is(token):
		return http.StatusUnauthorized, errWrongToken
	}
	return 0, nil
}
