// msgauth FOLDER RECORDS: {file: [verdict per signature, from the top]} of every *.eml, judged by go-msgauth.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/emersion/go-msgauth/dkim"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	records := map[string]string{}
	check(json.Unmarshal([]byte(os.Args[2]), &records))
	options := &dkim.VerifyOptions{LookupTXT: func(name string) ([]string, error) {
		if text, ok := records[strings.TrimSuffix(name, ".")]; ok {
			return []string{text}, nil
		}
		return nil, errors.New("no such record")
	}}
	files, err := filepath.Glob(filepath.Join(os.Args[1], "*.eml"))
	check(err)
	verdicts := map[string][]bool{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		check(err)
		found, err := dkim.VerifyWithOptions(bytes.NewReader(raw), options)
		check(err)
		verdicts[filepath.Base(file)] = []bool{}
		for _, one := range found {
			verdicts[filepath.Base(file)] = append(verdicts[filepath.Base(file)], one.Err == nil)
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(verdicts))
}
