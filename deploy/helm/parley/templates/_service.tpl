{{/* Everything of one service. Takes (dict "top" $ "role" "party" "values" .Values.party). */}}

{{- define "parley.name" -}}
{{ printf "%s-%s" .top.Release.Name .role | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "parley.selector" -}}
app.kubernetes.io/name: parley
app.kubernetes.io/instance: {{ .top.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "parley.labels" -}}
{{ include "parley.selector" . }}
app.kubernetes.io/version: {{ .top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .top.Chart.Name .top.Chart.Version }}
{{- end }}

{{- define "parley.certificates" -}}
{{ .values.certificates.secret | default (printf "%s-certificates" (include "parley.name" .)) }}
{{- end }}

{{- define "parley.dataClaim" -}}
{{ .values.data.claim | default (printf "%s-data" (include "parley.name" .)) }}
{{- end }}

{{/* The service's YAML file: what the chart knows, over what the values say. */}}
{{- define "parley.config" -}}
{{- $fixed := dict "name" .values.name "identity" "/certificates" "state" "/state" -}}
{{- if not .values.config.connect }}{{ $fixed = set $fixed "listen" "0.0.0.0:7700" }}{{ end -}}
{{ toYaml (mergeOverwrite (deepCopy .values.config) $fixed) }}
{{- end }}

{{/* The web page's port, if the coordinator has one. */}}
{{- define "parley.webPort" -}}
{{- with (.values.config.web).listen }}{{ regexFind "[0-9]+$" . }}{{ end }}
{{- end }}

{{/* By digest where one is given: a tag may come to mean another image. */}}
{{- define "parley.image" -}}
{{- $digest := index .top.Values.image.digests .role -}}
{{ .top.Values.image.registry }}parley/{{ .role }}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ .top.Values.image.tag | default .top.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "parley.probe" -}}
exec:
  command: [healthy]
timeoutSeconds: 20
{{- end }}

{{- define "parley.aliveProbe" -}}
exec:
  command: [healthy, alive]
timeoutSeconds: 20
{{- end }}

{{- define "parley.check" -}}
{{- $values := .values }}
{{- if not $values.name }}{{ fail (printf "%s.name is empty: set it to the name in the certificate" .role) }}{{ end }}
{{- range $file := list "key.pem" "certificate.pem" "ca.pem" }}
{{- if and (not $values.certificates.secret) (not (index $values.certificates.files $file)) }}
{{- fail (printf "%s: name the secret with its certificate (%s.certificates.secret), or give %s: --set-file '%s.certificates.files.%s=%s'" $.role $.role $file $.role ($file | replace "." "\\.") $file) }}
{{- end }}
{{- end }}
{{- if and (eq .role "party") (not $values.config.policy.coordinators) }}
{{- fail "party.config.policy.coordinators is empty: name the coordinators that may call this party" }}
{{- end }}
{{- end }}

{{- define "parley.all" -}}
{{- include "parley.check" . }}
{{- $name := include "parley.name" . }}
{{- $web := include "parley.webPort" . }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  labels: {{- include "parley.labels" . | nindent 4 }}
automountServiceAccountToken: false
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
  labels: {{- include "parley.labels" . | nindent 4 }}
data:
  {{ .role }}.yaml: |
    {{- include "parley.config" . | nindent 4 }}
{{- if not .values.certificates.secret }}
---
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "parley.certificates" . }}
  labels: {{- include "parley.labels" . | nindent 4 }}
type: Opaque
data:
  {{- range $file, $content := .values.certificates.files }}
  {{ $file }}: {{ $content | b64enc }}
  {{- end }}
{{- end }}
{{- if not .values.data.claim }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ include "parley.dataClaim" . }}
  labels: {{- include "parley.labels" . | nindent 4 }}
  annotations:
    helm.sh/resource-policy: keep
spec:
  accessModes: [ReadWriteOnce]
  {{- with .values.data.storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .values.data.size }}
{{- end }}
{{- if not .values.config.connect }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- include "parley.labels" . | nindent 4 }}
  {{- with .values.service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .values.service.type }}
  selector: {{- include "parley.selector" . | nindent 4 }}
  ports:
    - {name: grpc, port: 7700, targetPort: grpc, protocol: TCP, appProtocol: grpc}
    {{- if $web }}
    - {name: web, port: {{ $web }}, targetPort: web, protocol: TCP}
    {{- end }}
{{- end }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels: {{- include "parley.labels" . | nindent 4 }}
spec:
  serviceName: {{ $name }}
  {{- if .values.config.standby }}
  # Two pods: one serves and is ready, the other stands by. A roll-out would wait for the second for ever.
  replicas: 2
  podManagementPolicy: Parallel
  updateStrategy: {type: OnDelete}
  {{- else }}
  replicas: 1
  {{- end }}
  selector:
    matchLabels: {{- include "parley.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "parley.labels" . | nindent 8 }}
      annotations:
        # A new configuration restarts the pod; a renewed certificate does not have to.
        checksum/config: {{ include "parley.config" . | sha256sum }}
    spec:
      serviceAccountName: {{ $name }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 30
      {{- with .top.Values.image.pullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: {{ .role }}
          image: {{ include "parley.image" . }}
          imagePullPolicy: {{ .top.Values.image.pullPolicy }}
          args: [{{ .role }}, --config, /etc/parley/{{ .role }}.yaml]
          {{- with .values.environmentSecret }}
          envFrom:
            - secretRef: {name: {{ . }}}
          {{- end }}
          {{- if not .values.config.connect }}
          ports:
            - {name: grpc, containerPort: 7700, protocol: TCP}
            {{- if $web }}
            - {name: web, containerPort: {{ $web }}, protocol: TCP}
            {{- end }}
          {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          startupProbe:
            {{- include "parley.aliveProbe" . | nindent 12 }}
            periodSeconds: 5
            failureThreshold: 24
          readinessProbe:
            {{- include "parley.probe" . | nindent 12 }}
            periodSeconds: 15
            failureThreshold: 2
          livenessProbe:
            {{- include "parley.aliveProbe" . | nindent 12 }}
            periodSeconds: 30
            failureThreshold: 4
          resources: {{- toYaml .values.resources | nindent 12 }}
          volumeMounts:
            - {name: config, mountPath: /etc/parley, readOnly: true}
            - {name: certificates, mountPath: /certificates, readOnly: true}
            - {name: data, mountPath: /data, readOnly: true}
            - {name: state, mountPath: /state}
            - {name: tmp, mountPath: /tmp}
            {{- if .values.fileSecret }}
            - {name: secrets, mountPath: /secrets, readOnly: true}
            {{- end }}
      {{- with .values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      volumes:
        - name: config
          configMap: {name: {{ $name }}}
        - name: certificates
          secret: {secretName: {{ include "parley.certificates" . }}, defaultMode: 0440}
        - name: data
          persistentVolumeClaim: {claimName: {{ include "parley.dataClaim" . }}, readOnly: true}
        - name: tmp
          emptyDir: {sizeLimit: 1Gi}
        {{- with .values.fileSecret }}
        - name: secrets
          secret: {secretName: {{ . }}, defaultMode: 0440}
        {{- end }}
  volumeClaimTemplates:
    - metadata:
        name: state
        labels: {{- include "parley.selector" . | nindent 10 }}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .values.state.storageClass }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .values.state.size }}
{{- if .top.Values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels: {{- include "parley.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .top.Values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels: {{- include "parley.selector" . | nindent 6 }}
{{- end }}
{{- if .top.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}
  labels: {{- include "parley.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "parley.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  # A rule with an empty list of peers would let everybody in, so without peers there is no rule.
  ingress:
    {{- if and .values.network.from (not .values.config.connect) }}
    - from: {{- toYaml .values.network.from | nindent 8 }}
      ports:
        - {port: grpc, protocol: TCP}
        {{- if $web }}
        - {port: web, protocol: TCP}
        {{- end }}
    {{- else }} []
    {{- end }}
  egress:
    - to:
        - {{- toYaml .top.Values.networkPolicy.dns | nindent 10 }}
      ports:
        - {port: 53, protocol: UDP}
        - {port: 53, protocol: TCP}
    {{- with .values.network.to }}
    - to: {{- toYaml . | nindent 8 }}
    {{- end }}
{{- end }}
{{- end }}
