package admin

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestTokenIsReadFromItsFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files have no such modes here")
	}
	tests := []struct {
		name, content string
		mode          os.FileMode
		want          string // or of the error
		ok            bool
	}{
		{name: "the owner's alone", content: secret, mode: 0o600, want: secret, ok: true},
		{name: "a group's", content: secret, mode: 0o440, want: secret, ok: true},
		{name: "white space around it", content: "\n\t" + secret + " \r\n", mode: 0o600, want: secret, ok: true},
		{name: "exactly 16 characters", content: "0123456789abcdef", mode: 0o600, want: "0123456789abcdef", ok: true},
		{name: "everybody's", content: secret, mode: 0o644, want: "everybody can read the token (mode 0644); chmod it to 0600"},
		{name: "too short", content: "0123456789abcde", mode: 0o600, want: "16 to 1024 characters, this one has 15"},
		{name: "empty", content: "\n", mode: 0o600, want: "this one has 0"},
		{name: "too long", content: strings.Repeat("x", 5000), mode: 0o600, want: "16 to 1024 characters"},
		{name: "two words", content: secret + " " + secret, mode: 0o600, want: "one word of ASCII"},
		{name: "two lines", content: secret + "\n" + secret, mode: 0o600, want: "one word of ASCII"},
		{name: "other letters", content: secret + "é", mode: 0o600, want: "one word of ASCII"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tt.mode); err != nil {
				t.Fatal(err)
			}
			token, err := ReadToken(path)
			if tt.ok && (err != nil || !token.is(tt.want)) {
				t.Errorf("ReadToken = %v; want the token", err)
			}
			if !tt.ok && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), secret)) {
				t.Errorf("error = %v; want one with %q and the path, without the content", err, tt.want)
			}
		})
	}
}

func TestMissingTokenFileIsAnError(t *testing.T) {
	if _, err := ReadToken(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("error = %v", err)
	}
}

func TestTokenIsNotPrinted(t *testing.T) {
	token := Token{secret}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if s := fmt.Sprintf(format, token); strings.Contains(s, secret) {
			t.Errorf("%s prints %s", format, s)
		}
	}
}

func TestZeroTokenIsNothing(t *testing.T) {
	if (Token{}).is("") || (Token{}).given() {
		t.Error("the zero Token is taken for one")
	}
}
