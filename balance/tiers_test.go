package balance

import (
	"errors"
	"strings"
	"testing"
)

// Which backends may serve a client. Each word is one of them: u is up, f up and full, d
// down, x drained; after a b it is a backup, after a ! it has been tried.
func TestBackupsServeWhereNoOtherMay(t *testing.T) {
	tests := []struct {
		name     string
		backends string
		want     string // letters of those that are picked, or the error
		tryDown  string // likewise, where backends that are down are tried; "": as want
	}{
		{name: "not while another is up", backends: "u bu", want: "a"},
		{name: "nor while all others are full", backends: "f bu", want: "full"},
		{name: "nor while one that is full is left", backends: "d f bu", want: "full"},
		{name: "all others down", backends: "d d bu", want: "c"},
		{name: "all others drained", backends: "x bu bu", want: "bc"},
		{name: "all others tried by this client", backends: "!u bu", want: "b"},
		{name: "down, drained and tried", backends: "d x !u bu", want: "d"},
		{name: "full backups are waited for", backends: "d bf", want: "full"},
		{name: "backups alone serve", backends: "bu bu", want: "ab"},
		{name: "a backup that was tried does not", backends: "d !bu", want: "none", tryDown: "a"},
		{name: "all down", backends: "d bd", want: "none", tryDown: "a"},
		{name: "all down, and the others tried", backends: "!d bd", want: "none", tryDown: "b"},
		{name: "a backup that is up before others that are down", backends: "d bu", want: "b", tryDown: "b"},
		{name: "drained is not tried", backends: "x bd", want: "none", tryDown: "b"},
		{name: "no hope", backends: "x !bu", want: "none"},
	}
	for _, tt := range tests {
		for _, tryDown := range []bool{false, true} {
			want := tt.want
			if tryDown && tt.tryDown != "" {
				want = tt.tryDown
			}
			name := tt.name
			if tryDown {
				name += ", and down ones are tried"
			}
			for _, s := range Strategies {
				t.Run(string(s)+"/"+name, func(t *testing.T) {
					b, tried := stage(t, Config{Strategy: s, TryDown: tryDown}, tt.backends)
					want := want
					if s == First && len(want) == 2 {
						want = want[:1]
					}
					if got := picked(t, b, tried); got != want {
						t.Errorf("picked %s, want %s", got, want)
					}
				})
			}
		}
	}
}

// stage returns a Balancer over these backends, and which of them have been tried.
func stage(t *testing.T, cfg Config, backends string) (b *Balancer, tried []int) {
	b = newBy(t, cfg)
	for i, word := range strings.Fields(backends) {
		if strings.HasPrefix(word, "!") {
			tried = append(tried, i)
		}
		word = strings.TrimPrefix(word, "!")
		if _, err := b.Add(Backend{Max: 3, Weight: 1, Backup: strings.HasPrefix(word, "b")}); err != nil {
			t.Fatal(err)
		}
		switch word[len(word)-1] {
		case 'f':
			put(b, i, Leased, 3)
		case 'd':
			b.SetOut(i, Down, true)
		case 'x':
			b.SetOut(i, Drained, true)
		}
	}
	return b, tried
}

// picked returns who is picked for a hundred clients, each of which ends before the next
// comes; or the error.
func picked(t *testing.T, b *Balancer, tried []int) string {
	var got [26]bool
	for c := range Client(100) {
		choice, err := b.Pick(c, tried)
		switch {
		case errors.Is(err, ErrFull):
			return "full"
		case errors.Is(err, ErrNone):
			return "none"
		case err != nil:
			t.Fatal(err)
		}
		got[choice.Backend] = true
		b.Move(choice.Backend, Dialing, Free)
	}
	var letters strings.Builder
	for i, is := range got {
		if is {
			letters.WriteString(letter(i))
		}
	}
	return letters.String()
}

func TestABackupIsLeftWhenAnotherComesBack(t *testing.T) {
	b := newWeighted(t, Backend{Max: 9, Weight: 1}, Backend{Max: 9, Weight: 1, Backup: true})
	b.SetOut(0, Down, true)
	if i := pick(t, b); i != 1 {
		t.Fatalf("picked %d with the other down, want the backup", i)
	}
	b.SetOut(0, Down, false)
	if i := pick(t, b); i != 0 {
		t.Errorf("picked %d, want the one that is back", i)
	}
	b.SetBackup(0, true)
	b.SetBackup(1, false)
	if i := pick(t, b); i != 1 {
		t.Errorf("picked %d, want the one that is no backup any more", i)
	}
}

func TestOnBackups(t *testing.T) {
	tests := []struct {
		backends string // as in TestBackupsServeWhereNoOtherMay
		want     bool
	}{
		{"u bu", false}, {"f bu", false}, {"d bu", true}, {"x bf", true}, {"d x bu", true}, {"d u bu", false},
		{"d bd", false}, {"bu bu", false}, {"u u", false}, {"d d", false},
	}
	for _, tt := range tests {
		t.Run(tt.backends, func(t *testing.T) {
			b, _ := stage(t, Config{TryDown: true}, tt.backends)
			if got := b.OnBackups(); got != tt.want {
				t.Errorf("OnBackups() = %v", got)
			}
		})
	}
	b, _ := stage(t, Config{}, "d bu")
	b.Remove(0)
	if b.OnBackups() {
		t.Error("there is no other any more")
	}
	b.SetBackup(1, false)
	b.SetBackup(1, true)
	if i, _ := b.Add(Backend{Max: 1, Weight: 1}); b.OnBackups() {
		t.Error("another is added, and up")
	} else if b.SetOut(i, Drained, true); !b.OnBackups() {
		t.Error("it is drained")
	}
}
