package config

import (
	"flag"
	"fmt"
	"strings"
)

// A setting is one flag and, when serving, its environment variable.
//
// It is a cli.Flag of its own rather than one of the library's, and it only
// notes what was given: the library would read the environment of serving before
// it knows that another command was meant, and words each kind of error in its
// own way. Here resolve reads and checks whatever wins, once.
type setting struct {
	name     string
	short    string // a second name, of one letter; often empty
	category string
	usage    string // the effect; the placeholder is in backquotes
	def      string // the default, as one would type it
	defText  string // what help shows as the default where def would not tell
	env      string // the environment variable; empty: none
	kind

	given  []string // the flag's values, in order
	source string   // what resolve took the value from, as errors name it
}

// Apply, Names, IsSet and String make a setting a cli.Flag; Set, String and
// IsBoolFlag make it the flag.Value behind it.
func (s *setting) Apply(set *flag.FlagSet) error {
	for _, name := range s.Names() {
		set.Var(s, name, s.usage)
	}
	return nil
}

// Names returns the names without dashes.
func (s *setting) Names() []string {
	if s.short != "" {
		return []string{s.name, s.short}
	}
	return []string{s.name}
}

// IsSet tells whether the flag was given; the environment does not count.
func (s *setting) IsSet() bool { return len(s.given) > 0 }

// wasGiven tells whether the value is another's than the default, once it is
// resolved.
func (s *setting) wasGiven() bool { return s.IsSet() || s.source == s.env && s.env != "" }

// IsBoolFlag tells that the flag may stand alone.
func (s *setting) IsBoolFlag() bool { return s.alone }

// Set notes a value. It never fails: resolve checks.
func (s *setting) Set(v string) error {
	s.given = append(s.given, v)
	return nil
}

// String returns the last value given, which is how the library looks at --help.
func (s *setting) String() string {
	if len(s.given) == 0 {
		return s.def
	}
	return s.given[len(s.given)-1]
}

// label is the flag as errors and help name it.
func (s *setting) label() string { return "--" + s.name }

// resolve stores the value: the flag's, else the environment's, else the
// default. A flag that is given twice counts once, the last time, unless it may
// be repeated. The error names the flag or the variable.
func (s *setting) resolve(getenv func(string) string) error {
	for _, v := range s.values(getenv) {
		if err := s.read(v); err != nil {
			return fmt.Errorf("%s: %w", s.source, err)
		}
	}
	return nil
}

// values returns what is to be read, and notes where it is from.
func (s *setting) values(getenv func(string) string) []string {
	s.source = s.label()
	if s.IsSet() && !s.many {
		return s.given[len(s.given)-1:]
	}
	if s.IsSet() {
		return s.given
	}
	if v := s.fromEnv(getenv); v != "" {
		s.source = s.env
		if s.many {
			return strings.Fields(v)
		}
		return []string{v}
	}
	if s.def != "" {
		return []string{s.def}
	}
	return nil
}

// fromEnv returns the variable's value; one that is set to nothing is unset.
func (s *setting) fromEnv(getenv func(string) string) string {
	if s.env == "" {
		return ""
	}
	return getenv(s.env)
}
