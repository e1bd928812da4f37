{{- define "penstock.name" -}}
{{- $name := contains "penstock" .Release.Name | ternary .Release.Name (printf "%s-penstock" .Release.Name) -}}
{{ $name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "penstock.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "penstock.name" .) }}
{{- end }}

{{/* The request topic, as the worker names it. */}}
{{- define "penstock.topic" -}}
{{- $name := regexReplaceAll "[^a-zA-Z0-9._-]" .Values.config.worker.served_name "-" -}}
{{ .Values.config.worker.topic | default (printf "penstock.requests.%s" $name) }}
{{- end }}

{{/* All topics that the worker reads, separated by commas. With routes it has requests only if it names their topic. */}}
{{- define "penstock.topics" -}}
{{- $worker := .Values.config.worker -}}
{{- $routes := .Values.config.routes | default (ternary (list $worker) list (hasKey $worker "input_topic")) -}}
{{- $topics := list -}}
{{- if or $worker.topic (not $routes) -}}
{{- $topic := include "penstock.topic" . -}}
{{- $topics = list $topic (printf "%s.bulk" $topic) -}}
{{- end -}}
{{- range $routes -}}
{{- $topics = append $topics .input_topic -}}
{{- if .accept_replays -}}
{{- $topics = append $topics (printf "%s.replay" .input_topic) -}}
{{- end -}}
{{- end -}}
{{ join "," $topics }}
{{- end }}

{{/* The consumer group, as the worker names it: with one route and no requests by its output. Others with routes name it. */}}
{{- define "penstock.group" -}}
{{- $worker := .Values.config.worker -}}
{{- $name := printf "penstock.%s" $worker.served_name -}}
{{- if $worker.output_topic -}}
{{- $name = printf "%s.%s" $name $worker.output_topic -}}
{{- end -}}
{{- with .Values.config.routes -}}
{{- $name = printf "%s.%s" $name (index . 0).output_topic -}}
{{- end -}}
{{ $worker.group_id | default $name }}
{{- end }}

{{/* Fails where so many pods have more members than the topic has partitions. `name` is the value that gives `pods`. */}}
{{- define "penstock.checkMembers" -}}
{{- $members := mul .pods .root.Values.membersPerPod -}}
{{- $partitions := int .root.Values.config.worker.partitions -}}
{{- if gt (int $members) $partitions -}}
{{- fail (printf "%s %v with membersPerPod %v are %v members, more than config.worker.partitions %v: the others would be idle." .name .pods .root.Values.membersPerPod $members $partitions) -}}
{{- end -}}
{{- end }}
