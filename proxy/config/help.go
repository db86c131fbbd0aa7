package config

import (
	"flag"
	"strings"
)

// helpWidth is the width of help in columns, whatever the terminal's: the same
// text everywhere can be compared, quoted and searched.
const helpWidth = 80

const (
	flagIndent  = "  "
	usageIndent = "      "
)

// helpText lays out the help of a command: what comes first is intro.
func helpText(intro string, ss settings) string {
	var b strings.Builder
	b.WriteString(intro)
	category := ""
	for _, s := range ss {
		if s.category != category {
			category = s.category
			b.WriteString("\n" + category + ":\n")
		}
		b.WriteString(s.help())
	}
	return b.String()
}

// help is the entry of one flag: its name and placeholder, and below them the
// effect, the default and the variable.
func (s *setting) help() string {
	// UnquoteUsage looks for the placeholder as the standard library does.
	placeholder, effect := flag.UnquoteUsage(&flag.Flag{Usage: s.usage, Value: s})
	name := s.label()
	if s.short != "" {
		name = "-" + s.short + ", " + name
	}
	if placeholder != "" {
		name += " " + placeholder
	}
	return flagIndent + name + "\n" + wrap(effect+s.trailer(), usageIndent)
}

// trailer is what stands behind the effect.
func (s *setting) trailer() string {
	var t string
	switch {
	case s.defText != "":
		t = " (" + s.defText + ")"
	case s.def != "":
		t = " (default: " + s.def + ")"
	}
	if s.env != "" {
		t += " [$" + s.env + "]"
	}
	return t
}

// wrap breaks s at spaces into lines that start with indent.
func wrap(s, indent string) string {
	var b strings.Builder
	line := indent
	for _, word := range strings.Fields(s) {
		if len(line) > len(indent) && len(line)+1+len(word) > helpWidth {
			b.WriteString(line + "\n")
			line = indent
		}
		if len(line) > len(indent) {
			line += " "
		}
		line += word
	}
	b.WriteString(line + "\n")
	return b.String()
}
