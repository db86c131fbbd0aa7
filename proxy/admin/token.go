package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// minToken and maxToken bound a token, in characters. A short one can be guessed.
const (
	minToken = 16
	maxToken = 1024
)

// A Token is the secret that changes need. The zero Token is none.
type Token struct{ secret string }

// String hides the secret.
func (t Token) String() string { return "(a token)" }

// GoString hides the secret.
func (t Token) GoString() string { return t.String() }

// ReadToken reads a token from a file, without the white space around it. It refuses
// a file that everybody on the machine can read, and what is no token: 16 to 1024
// characters that can stand in a header. No error holds anything of the content.
func ReadToken(path string) (Token, error) {
	f, err := os.Open(path)
	if err != nil {
		return Token{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Token{}, err
	}
	// Windows has no such bits; there Go makes them up.
	if mode := info.Mode().Perm(); mode&0o004 != 0 && runtime.GOOS != "windows" {
		return Token{}, fmt.Errorf("%s: everybody can read the token (mode %04o); chmod it to 0600 or 0640", path, mode)
	}
	content, err := io.ReadAll(io.LimitReader(f, 2*maxToken))
	if err != nil {
		return Token{}, err
	}
	t, err := newToken(strings.TrimSpace(string(content)))
	if err != nil {
		return Token{}, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func newToken(secret string) (Token, error) {
	switch {
	case len(secret) < minToken || len(secret) > maxToken:
		return Token{}, fmt.Errorf("a token has %d to %d characters, this one has %d", minToken, maxToken, len(secret))
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return Token{}, errors.New("a token is one word of ASCII letters, digits and signs")
	}
	return Token{secret: secret}, nil
}

// given reports whether there is a token.
func (t Token) given() bool { return t.secret != "" }

// is reports whether got is the token. How long it takes tells nothing of either, not
// even their lengths.
func (t Token) is(got string) bool {
	a, b := sha256.Sum256([]byte(t.secret)), sha256.Sum256([]byte(got))
	return t.given() && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
