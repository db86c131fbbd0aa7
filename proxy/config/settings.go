package config

import "github.com/urfave/cli/v2"

// settings are the flags of one command, in the order of its help.
type settings []*setting

// resolve stores all values. The error is the first one's.
func (ss settings) resolve(getenv func(string) string) error {
	for _, s := range ss {
		if err := s.resolve(getenv); err != nil {
			return err
		}
	}
	return nil
}

// flags returns the settings as the library wants them.
func (ss settings) flags() []cli.Flag {
	flags := make([]cli.Flag, len(ss))
	for i, s := range ss {
		flags[i] = s
	}
	return flags
}

// find returns the setting of that name, or nil.
func (ss settings) find(name string) *setting {
	for _, s := range ss {
		if s.name == name {
			return s
		}
	}
	return nil
}

// source names where resolve took a value from: the flag, or the variable.
func (ss settings) source(name string) string { return ss.find(name).source }

// given returns the first flag that was given, or nil.
func (ss settings) given() *setting {
	for _, s := range ss {
		if s.IsSet() {
			return s
		}
	}
	return nil
}

// helpSetting is asked for by the library, which knows it by its name.
func helpSetting() *setting {
	return &setting{
		name: "help", short: "h", category: generalFlags,
		usage: "show this help", kind: toggle(new(bool)),
	}
}

func versionSetting() *setting {
	return &setting{
		name: "version", category: generalFlags,
		usage: "print the version", kind: toggle(new(bool)),
	}
}
